"""`astha tables describe`."""

from __future__ import annotations

from collections.abc import Callable

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.cli.store import with_store
from astha.settings import Settings
from components.commands.tables.description import Description, describe, print_description
from components.lib.lake.table_lookup import current_metadata, find_table, full_name
from components.lib.lake.updater_state import read_failing_tables
from registry.contract import MetadataStore


@click.command("describe", short_help="Show a table's columns, partitioning, statistics and versions.")
@click.argument("table", metavar="[DATABASE.]TABLE")
@click.option("--version", type=click.IntRange(min=1), help="Show this schema version. Default: the current one.")
@click.option("--partitions", is_flag=True, help="Also show rows, files and size per partition.")
@settings_options
@json_option
def describe_command(
    reload: Callable[[], Settings], table: str, version: int | None, partitions: bool, as_json: bool
) -> None:
    """Show a table: columns with their ids, partitioning, sort order, statistics, versions, properties.

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
    trouble = (await read_failing_tables(store)).get(table.id)
    return describe(table, versions, shown, await store.get_statistics(table.id) if partitions else (), trouble)
