"""One line for each of our commands, apart from their modules: `astha --help` imports none of them."""

from __future__ import annotations

from collections.abc import Mapping

SHORT_HELP: Mapping[str, str] = {
    "check": "Check whether a daemon could run: server, schema, components.",
    "completion": "Print the script that completes commands in a shell.",
    "component": "Create a new component.",
    "init": "Write the settings files of a new project.",
    "pause": "Stop deliveries to a component until it is resumed.",
    "refresh": "Make a component read the registry again.",
    "registry": "Create, migrate, inspect or copy a registry.",
    "resume": "Resume deliveries to a paused component.",
    "run": "Run the daemon: follow the registry and deliver its changes.",
    "settings": "List every setting with its default and its purpose.",
    "status": "Show a running daemon and the state of each component.",
    "subscriptions": "Show which component receives which tables.",
    "tail": "Print events as they pass through a running daemon.",
    "top": "Show a running daemon at a glance, again and again.",
    "up": "Start registry and daemon of a project, for development.",
}
