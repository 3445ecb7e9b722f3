"""`astha tables`: the group."""

from __future__ import annotations

import click

from astha.cli.lazy import LazyGroup

_PLACES = {
    "alter": "components.commands.tables.alter:alter_command",
    "create": "components.commands.tables.create:create_command",
    "describe": "components.commands.tables.describe:describe_command",
    "drop": "components.commands.tables.drop:drop_command",
    "list": "components.commands.tables.list:list_command",
}

_SHORT_HELPS = {
    "alter": "Change columns, order, properties or name.",
    "create": "A new table.",
    "describe": "Columns, partitioning, statistics, versions, properties.",
    "drop": "A table leaves the lake.",
    "list": "All tables, with rows, files and size.",
}


@click.group(
    "tables",
    cls=LazyGroup,
    places=_PLACES,
    short_helps=_SHORT_HELPS,
    short_help="Tables of the lake: create, list, describe, alter, drop.",
)
def tables_commands() -> None:
    """Tables of the lake. A table is DATABASE.NAME, or NAME for one in the database `default`."""
