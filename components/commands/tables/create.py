"""`astha tables create`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.cli.progress import progress
from astha.cli.store import with_store
from astha.lake_locations import located
from astha.settings import Settings
from components.commands.tables.description import Description, describe
from components.commands.tables.new_location import NewLocation
from components.commands.tables.options import assignments
from components.lib.lake.files import engine_of
from components.lib.lake.files.footers import read_columns
from components.lib.lake.iceberg.catalog import NAME
from components.lib.lake.schema.table_definition import TableDefinition, read_definition
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.schema.type_syntax import SyntaxProblem, parse_column
from components.lib.lake.storage.location_checks import overlap
from components.lib.lake.storage.locations import BadLocation, canonical
from components.lib.lake.table_lookup import TableName, begin_drop, current_metadata, finish_drop, full_name
from registry.contract import MetadataStore
from registry.errors import AlreadyExists
from registry.models import LakeTable

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command("create", short_help="Create a table.")
@click.argument("table", metavar="[DATABASE.]TABLE")
@click.option(
    "--schema", "schema_file", type=_FILE, help="YAML or JSON file: a table definition, or an Iceberg schema."
)
@click.option("--like", type=_FILE, help="Take the columns of this Parquet file.")
@click.option(
    "--column", "columns", multiple=True, metavar="NAME:TYPE", help="Add a column; ! after the type makes it required."
)
@click.option(
    "--partition-by", multiple=True, metavar="TERM", help="Partition by day(ts), bucket(16, id), region or the like."
)
@click.option("--sort-by", multiple=True, metavar="TERM", help="Sort by id, 'ts desc' or the like.")
@click.option("--format", help="File format: parquet (the default) or json.")
@click.option("--compression", help="Compression: zstd (the default), or another of the format.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Set a property of the table.")
@click.option("--location", help="Location of its files. Default: below lake.warehouse, by database and name.")
@click.option(
    "--no-check", is_flag=True, help="Don't write a test object to the location first: only the daemon can reach it."
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the table exists, and leave it unchanged.")
@settings_options
@json_option
def create_command(
    reload: Callable[[], Settings],
    table: str,
    schema_file: Path | None,
    like: Path | None,
    columns: tuple[str, ...],
    properties: tuple[str, ...],
    no_check: bool,
    if_not_exists: bool,
    as_json: bool,
    **given: str | tuple[str, ...] | None,
) -> None:
    """Create a table from columns, a definition file, or the columns of a Parquet file.

    \b
    Examples:
      astha tables create web.hits --column ts:date --partition-by 'month(ts)'
      astha tables create sales.orders --schema orders.yaml
      astha tables create sales.orders --like orders.parquet --sort-by id

    The location must not be shared with another table. Before anything is registered, a small object is written there,
    read back and deleted.

    Types: boolean, int, long, float, double, decimal(P,S), date, time, timestamp, timestamptz, string, uuid, fixed(N),
    binary, list<T>, map<K,V>, struct<name: T, ...>.
    """
    settings = reload()
    try:
        definition = _definition(schema_file, like, columns, given)
        named = {**definition.properties, **assignments(properties, "--property", "NAME=VALUE")}
        schema = definition.schema()
        engine_of(schema)  # refuses an unknown format or compression
    except SchemaProblem as problem:
        raise Failure(str(problem), Exit.USAGE) from problem
    wanted = TableName.parse(table)
    database, name = wanted.database, wanted.table
    location = definition.location
    new_location = NewLocation(
        settings, database, name, None if location is None else canonical(location), probed=not no_check
    )

    async def create(store: MetadataStore) -> tuple[Description, bool]:
        here = dataclasses.replace(new_location, settings=await located(settings, store, record=location is None))
        return await create_table(store, here, schema, named, if_not_exists)

    with progress(f"creating {database}.{name}", quiet=as_json):
        description, created = with_store(settings, create)
    if as_json:
        print_json({"created": created, "table": description})
    elif created:
        by = f", partitioned by {', '.join(description.partition_by)}" if description.partition_by else ""
        many = len(description.columns)
        click.echo(f"created {database}.{name} with {many} column{'s' * (many != 1)}{by} at {description.location}")
    else:
        click.echo(f"{database}.{name} exists already, with schema version {description.schema_version}")


def _definition(
    schema_file: Path | None,
    like: Path | None,
    columns: tuple[str, ...],
    given: dict[str, str | tuple[str, ...] | None],
) -> TableDefinition:
    if sum(map(bool, (schema_file, like, columns))) != 1:
        raise SyntaxProblem("give its columns in exactly one way: --column NAME:TYPE, --schema FILE or --like FILE")
    if schema_file is not None:
        definition = read_definition(schema_file)
    elif like is not None:
        definition = TableDefinition(read_columns(like))
    else:
        definition = TableDefinition([parse_column(text) for text in columns])
    chosen = {name: value for name, value in given.items() if value}
    return dataclasses.replace(definition, **chosen)  # type: ignore[arg-type]  # options are named like the fields


async def create_table(
    store: MetadataStore,
    new_location: NewLocation,
    schema: TableSchema,
    properties: dict[str, str],
    if_not_exists: bool,
) -> tuple[Description, bool]:
    database, name = new_location.database, new_location.name
    found = await store.get_table(database, name)
    created = found is None
    if found is None:
        location = await new_location.choose(await store.list_tables(), await store.list_catalog_namespaces(NAME))
        try:
            found = await store.create_table(database, name, location, schema.draft(properties=properties))
        except AlreadyExists:
            found, created = await store.get_table(database, name), False
        else:
            await _require_first(store, found)
    if not created and (not if_not_exists or found is None):
        raise AlreadyExists(f"table {database}.{name} exists")
    assert found is not None  # noqa: S101  (it existed, or was created)
    table = found
    metadata = await current_metadata(store, table)
    return describe(table, [metadata], metadata), created


async def _require_first(store: MetadataStore, made: LakeTable) -> None:
    """Two concurrent commands may both have found the location free: the first one keeps it."""
    for other in await store.list_tables():
        if other.id < made.id and overlap(other.location, made.location):
            await begin_drop(store, made, purge=False)
            await finish_drop(store, made)
            raise BadLocation(f"{made.location} was taken by {full_name(other)} meanwhile: choose another")
