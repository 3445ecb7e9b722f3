"""`astha topics`: the group. Its commands are imported when they are needed."""

from __future__ import annotations

import click

from astha.cli.lazy import LazyGroup

_PLACES = {
    "alter": "components.commands.topics.topics:alter_command",
    "create": "components.commands.topics.topics:create_command",
    "delete": "components.commands.topics.topics:delete_command",
    "describe": "components.commands.topics.topics:describe_command",
    "list": "components.commands.topics.topics:list_command",
    "to-table": "components.commands.topic_to_table.cli:to_table_command",
    "trim": "components.commands.topics.topics:trim_command",
}


_SHORT_HELPS = {
    "alter": "Change a topic's retention.",
    "create": "Create a topic.",
    "delete": "Delete a topic and its data.",
    "describe": "Show a topic and its partitions.",
    "list": "List topics.",
    "to-table": "Copy a topic into a table, exactly once.",
    "trim": "Delete records before an offset.",
}


@click.group(
    "topics",
    cls=LazyGroup,
    places=_PLACES,
    short_helps=_SHORT_HELPS,
    short_help="Create, list, describe, alter, trim and delete topics.",
)
def topics_commands() -> None:
    """Topics of the segment store. A topic has partitions; a partition has records, ordered by offset.

    \b
    Examples:
      astha topics create orders --partitions 12 --retention 7d
      astha topics list
    """
