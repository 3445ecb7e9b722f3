"""`astha tables alter`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import click
import msgspec

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.cli.store import with_store
from astha.settings import Settings
from components.commands.tables.description import Description, describe
from components.commands.tables.options import assignments
from components.lib.lake.schema.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    SchemaChange,
    SortBy,
    WidenColumn,
    evolve,
)
from components.lib.lake.schema.table_schema import SchemaProblem
from components.lib.lake.schema.type_syntax import SyntaxProblem, parse_column
from components.lib.lake.table_lookup import TableName, find_table, full_name
from registry.contract import MetadataStore
from registry.errors import Conflict
from registry.json_text import JsonText, parse_json_as, to_json_text
from registry.models import LakeTable

_ATTEMPTS = 5


@dataclasses.dataclass(frozen=True)
class _Alteration:
    changes: Sequence[SchemaChange]
    properties: Mapping[str, str]
    unset: Sequence[str]
    name: str | None


@click.command("alter", short_help="Change a table's columns, sort order, properties or name.")
@click.argument("table", metavar="[DATABASE.]TABLE")
@click.option("--rename", multiple=True, metavar="COLUMN=NAME", help="Rename a column; its values stay.")
@click.option("--add", multiple=True, metavar="NAME:TYPE", help="Add a column, or a field with STRUCT.NAME:TYPE.")
@click.option("--sort-by", multiple=True, metavar="TERM", help="Change the sort order of new files.")
@click.option("--move", multiple=True, metavar="COLUMN[=AFTER]", help="Move a column after AFTER, or to the beginning.")
@click.option(
    "--widen",
    multiple=True,
    metavar="COLUMN:TYPE",
    help="Widen a type: int to long, float to double, decimal to more digits.",
)
@click.option("--optional", multiple=True, metavar="COLUMN", help="Make a required column optional.")
@click.option("--drop", multiple=True, metavar="COLUMN", help="Drop a column. Its values cannot be restored.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Set a property of the table.")
@click.option("--unset", multiple=True, metavar="NAME", help="Remove a property.")
@click.option("--rename-table", metavar="[DATABASE.]TABLE", help="Rename the table; its files stay where they are.")
@settings_options
@json_option
def alter_command(
    reload: Callable[[], Settings],
    table: str,
    properties: tuple[str, ...],
    unset: tuple[str, ...],
    rename_table: str | None,
    as_json: bool,
    **options: tuple[str, ...],
) -> None:
    """Change a table. Changes to columns create one new schema version; they are applied in the order of the options
    below.

    A column inside a struct is STRUCT.FIELD, inside a list LIST.element, inside a map MAP.value.

    \b
    Examples:
      astha tables alter sales.orders --add note:string --widen count:long
      astha tables alter sales.orders --rename price=net --drop gross
      astha tables alter sales.orders --property owner=me --rename-table sales.new
    """
    try:
        changes = _changes(options)
    except SchemaProblem as problem:
        raise Failure(str(problem), Exit.USAGE) from problem
    alteration = _Alteration(changes, assignments(properties, "--property", "NAME=VALUE"), unset, rename_table)
    if not (changes or alteration.properties or unset or rename_table):
        raise Failure("nothing to change: see `astha tables alter --help`", Exit.USAGE)

    async def alter(store: MetadataStore) -> tuple[Description, list[str]]:
        return await _alter(store, table, alteration)

    description, done = with_store(reload(), alter)
    if as_json:
        print_json({"changed": done, "table": description})
    else:
        name = f"{description.database}.{description.name}"
        click.echo(f"{name}: {', '.join(done) or 'nothing to change, it is already so'}")


def _changes(options: dict[str, tuple[str, ...]]) -> list[SchemaChange]:
    """Returns the changes in the order of application: renames first, so that the others use new names; drops last."""
    changes: list[SchemaChange] = [RenameColumn(*_pair(text, "--rename", "COLUMN=NAME")) for text in options["rename"]]
    changes += [_add(text) for text in options["add"]]
    changes += [SortBy(options["sort_by"])] if options["sort_by"] else []
    for text in options["move"]:
        column, _, after = text.partition("=")
        changes.append(MoveColumn(column.strip(), after.strip() or None))
    changes += [_widen(text) for text in options["widen"]]
    changes += [MakeOptional(name.strip()) for name in options["optional"]]
    changes += [DropColumn(name.strip()) for name in options["drop"]]
    return changes


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    ((name, value),) = assignments((text,), option, example).items()
    return name, value


def _add(text: str) -> AddColumn:
    column = parse_column(text)
    within, _, name = column.name.rpartition(".")
    return AddColumn(column.model_copy(update={"name": name}), within)


def _widen(text: str) -> WidenColumn:
    column = parse_column(text)
    if column.required:
        raise SyntaxProblem(f"--widen {text!r}: a column can't become required: leave out the !")
    return WidenColumn(column.name, column.field_type)


async def _alter(store: MetadataStore, written: str, alteration: _Alteration) -> tuple[Description, list[str]]:
    table = await find_table(store, written)
    if table.status != "active":
        raise Failure(f"{full_name(table)} is {table.status}: it can't be changed any more", Exit.PROBLEM)
    done = []
    version = await _new_version(store, table, alteration) if alteration.changes else None
    if version is not None:
        done.append(f"schema version {version}")
    table, changed = await _change_table(store, table, alteration)
    done += changed
    versions = await store.list_table_metadata(table.id)
    return describe(table, versions, versions[-1]), done


async def _new_version(store: MetadataStore, table: LakeTable, alteration: _Alteration) -> int | None:
    """Returns None if nothing changes. Builds on a version that another process adds meanwhile."""
    for attempt in range(1, _ATTEMPTS + 1):
        versions = await store.list_table_metadata(table.id)
        try:
            draft = evolve(versions, alteration.changes)
        except SyntaxProblem:
            raise
        except SchemaProblem as problem:
            raise type(problem)(f"{full_name(table)}: {problem}") from problem
        current = versions[-1]
        draft = msgspec.structs.replace(draft, properties=_properties(current.properties, alteration))
        if all(getattr(draft, name) == getattr(current, name) for name in ("schema", "sort_by")):
            return None
        try:
            added = await store.add_schema_version(table.id, draft, expected=current.schema_version)
        except Conflict:
            if attempt == _ATTEMPTS:
                raise
            continue
        return added.schema_version
    return None


async def _change_table(store: MetadataStore, table: LakeTable, alteration: _Alteration) -> tuple[LakeTable, list[str]]:
    """Changes properties and the name, which need no new version."""
    versions = await store.list_table_metadata(table.id)
    done = []
    properties = _properties(versions[-1].properties, alteration)
    wanted = TableName.parse(alteration.name) if alteration.name else TableName.of(table)
    database, name = wanted.database, wanted.table
    if properties != versions[-1].properties:
        done.append("properties")
    if (database, name) != (table.database, table.name):
        done.append(f"renamed from {full_name(table)}")
    if done:
        table = await store.alter_table(
            table.id,
            database=database if database != table.database else None,
            name=name if name != table.name else None,
            properties=parse_json_as(properties, dict[str, str]) if "properties" in done else None,
        )
    return table, done


def _properties(before: JsonText, alteration: _Alteration) -> JsonText:
    found = {**parse_json_as(before, dict[str, str]), **alteration.properties}
    return to_json_text({name: value for name, value in found.items() if name not in alteration.unset})
