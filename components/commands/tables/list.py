"""`astha tables list`."""

from __future__ import annotations

from collections.abc import Callable

import click

from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json, time_text
from astha.cli.store import with_store
from astha.cli.table import print_rows
from astha.quantities import format_size
from astha.settings import Settings
from components.lib.lake.table_lookup import full_name


@click.command("list", short_help="List tables with rows, files and size.")
@click.option("--database", help="Only tables of this database.")
@settings_options
@json_option
def list_command(reload: Callable[[], Settings], database: str | None, as_json: bool) -> None:
    """List tables with their rows, files and size, by name.

    \b
    Example:
      astha tables list --database sales
    """
    tables = with_store(reload(), lambda store: store.list_tables(database))
    if as_json:
        print_json({"tables": tables})
    elif not tables:
        click.echo(f"no tables in {database}" if database else "no tables: create one with `astha tables create`")
    else:
        rows = [
            [full_name(table), f"{table.row_count:,}", f"{table.file_count:,}", format_size(table.total_size),
             time_text(table.last_modified), table.status]
            for table in tables
        ]  # fmt: skip
        header = ("table", "rows", "files", "size", "last modified", "status")
        print_rows(header, rows, right=("rows", "files", "size"))
