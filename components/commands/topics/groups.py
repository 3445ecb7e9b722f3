"""`astha groups`: the group. Its commands are imported when they are needed."""

from __future__ import annotations

import click

from astha.cli.lazy import LazyGroup

_PLACES = {
    "delete": "components.commands.topics.group_commands:delete_command",
    "lag": "components.commands.topics.group_commands:lag_command",
    "list": "components.commands.topics.group_commands:list_command",
    "reset": "components.commands.topics.group_commands:reset_command",
}

_SHORT_HELPS = {
    "delete": "Delete a group and its committed offsets.",
    "lag": "Show the lag of a group.",
    "list": "List groups.",
    "reset": "Move a group to other offsets.",
}


@click.group(
    "groups",
    cls=LazyGroup,
    places=_PLACES,
    short_helps=_SHORT_HELPS,
    short_help="List, inspect, reset and delete consumer groups.",
)
def groups_commands() -> None:
    """Consumer groups and their committed offsets.

    \b
    Examples:
      astha groups list
      astha groups lag billing
    """
