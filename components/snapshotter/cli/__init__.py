"""`astha snapshot`: the group. Its commands are imported when they are needed."""

from __future__ import annotations

import click

from astha.cli.lazy import LazyGroup

_PLACES = {
    "clean": "components.snapshotter.cli.subcommands:clean_command",
    "create": "components.snapshotter.cli.subcommands:create_command",
    "expire": "components.snapshotter.cli.subcommands:expire_command",
    "list": "components.snapshotter.cli.subcommands:list_command",
    "rollback": "components.snapshotter.cli.subcommands:rollback_command",
}

_SHORT_HELPS = {
    "clean": "Delete files that no snapshot needs.",
    "create": "Request a snapshot and wait for it.",
    "expire": "Expire snapshots by policy or by tag.",
    "list": "List snapshots.",
    "rollback": "Roll a table back to a snapshot.",
}


@click.group(
    "snapshot",
    cls=LazyGroup,
    places=_PLACES,
    short_helps=_SHORT_HELPS,
    short_help="Create, list, expire and roll back snapshots of tables.",
)
def commands() -> None:
    """Create, list and expire named snapshots of tables, clean up files, and roll tables back.

    \b
    Examples:
      astha snapshot create sales.orders --tag q1-close
      astha snapshot list
    """
