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
    "alter": "Change a table's columns, sort order, properties or name.",
    "create": "Create a table.",
    "describe": "Show a table's columns, partitioning, statistics and versions.",
    "drop": "Drop a table.",
    "list": "List tables with rows, files and size.",
}


@click.group(
    "tables",
    cls=LazyGroup,
    places=_COMMANDS,
    short_helps=_SHORT_HELPS,
    short_help="Create, list, describe, alter and drop tables of the lake.",
)
def tables_commands() -> None:
    """Manage tables of the lake. A table is DATABASE.TABLE, or TABLE for one in the database `default`.

    \b
    Examples:
      astha tables create sales.orders --column id:long! --column note:string
      astha tables list
    """
