"""The command group `astha tables`."""

from __future__ import annotations

import click

from astha.cli.lazy import LazyGroup

_COMMANDS = {
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
    "tables", cls=LazyGroup, places=_COMMANDS, short_help="Create, list, describe, alter and drop tables of the lake."
)
def tables_commands() -> None:
    """Manage tables of the lake. A table is DATABASE.TABLE, or TABLE for one in the database `default`."""
