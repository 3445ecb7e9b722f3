"""`astha tables`: the group, and its shorter commands."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from astha.cli.exits import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json, print_rows
from astha.settings import Settings
from components.lake.tables import begin_drop, current_metadata, find_table, finish_drop, full_name
from components.tables.alter import alter_command
from components.tables.create import create_command
from components.tables.description import Description, describe, print_description, size, time
from components.tables.registry import with_store
from registry.contract import MetadataStore
from registry.models import LakeTable


@click.group("tables", short_help="Tables of the lake: create, list, describe, alter, drop.")
def tables_commands() -> None:
    """Tables of the lake. A table is DATABASE.NAME, or NAME for one in the database `default`."""


tables_commands.add_command(create_command)
tables_commands.add_command(alter_command)


@tables_commands.command("list")
@click.option("--database", help="Only of this one.")
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
        click.echo(f"no tables in {database}" if database else "no tables: `astha tables create` makes one")
    else:
        rows = [
            [full_name(table), f"{table.row_count:,}", f"{table.file_count:,}", size(table.total_size),
             time(table.last_modified), table.status]
            for table in tables
        ]  # fmt: skip
        header = ("table", "rows", "files", "size", "last modified", "status")
        print_rows(header, rows, right=("rows", "files", "size"))


@tables_commands.command("describe")
@click.argument("table", metavar="[DATABASE.]NAME")
@click.option("--version", type=click.IntRange(min=1), help="Columns of this schema version; else of the current one.")
@click.option("--partitions", is_flag=True, help="Rows, files and size of each partition too.")
@settings_options
@json_option
def describe_command(
    reload: Callable[[], Settings], table: str, version: int | None, partitions: bool, as_json: bool
) -> None:
    """Show a table: columns with their ids, partitioning, order, statistics, versions, properties.

    \b
    Examples:
      astha tables describe sales.orders
      astha tables describe sales.orders --version 1 --json

    Exits with 1 if its schema can't be read.
    """

    async def look(store: MetadataStore) -> Description:
        return await _look(store, table, version, partitions)

    found = with_store(reload(), look)
    print_json(found) if as_json else print_description(found)
    if found.problem is not None:
        if not as_json:
            raise Failure(found.problem, Exit.PROBLEM)
        raise click.exceptions.Exit(Exit.PROBLEM)


async def _look(store: MetadataStore, written: str, version: int | None, partitions: bool) -> Description:
    table = await find_table(store, written)
    await current_metadata(store, table)
    versions = await store.list_table_metadata(table.id)
    shown = next((entry for entry in versions if entry.schema_version == version), None) if version else versions[-1]
    if shown is None:
        newest = versions[-1].schema_version
        raise Failure(f"{full_name(table)} has no schema version {version}: the newest is {newest}", Exit.PROBLEM)
    return describe(table, versions, shown, await store.get_statistics(table.id) if partitions else ())


@tables_commands.command("drop")
@click.argument("table", metavar="[DATABASE.]NAME")
@click.option("--purge", is_flag=True, help="Its files are deleted too, once no snapshot needs them.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@settings_options
@json_option
def drop_command(reload: Callable[[], Settings], table: str, purge: bool, yes: bool, as_json: bool) -> None:
    """Drop a table: its columns, files and statistics leave the registry, and Iceberg's catalog follows.

    If the command is interrupted, the daemon finishes what was begun; so does repeating it.

    \b
    Examples:
      astha tables drop sales.orders
      astha tables drop sales.orders --purge --yes
    """
    settings = reload()
    found = with_store(settings, lambda store: find_table(store, table))
    if not yes:
        _ask(found, purge)

    async def drop(store: MetadataStore) -> bool:
        purged = await begin_drop(store, found, purge=purge)
        await finish_drop(store, found)
        return purged

    purged = with_store(settings, drop)
    if as_json:
        print_json({"dropped": full_name(found), "purged": purged, "files": found.file_count})
    else:
        after = "its files will be deleted" if purged else f"its files stay at {found.location}"
        click.echo(f"dropped {full_name(found)}; {after}")


def _ask(table: LakeTable, purge: bool) -> None:
    files = "and deletes its files" if purge else "and leaves its files where they are"
    question = f"this drops {full_name(table)} with {table.row_count:,} rows in {table.file_count:,} files, {files}"
    if not sys.stdin.isatty():
        raise Failure(f"{question}: repeat with --yes if that is meant", Exit.USAGE)
    if not click.confirm(f"{question}. Go on?", err=True):
        raise Failure("nothing was changed", Exit.PROBLEM)
