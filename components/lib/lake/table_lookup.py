"""Tables by the names that people use, and the two steps of a drop."""

from __future__ import annotations

from collections.abc import Mapping

from registry.contract import MetadataStore
from registry.errors import Invalid, NotFound
from registry.json_text import parse_json, parse_json_as
from registry.models import LakeTable, TableMetadata

DEFAULT_DATABASE = "default"

PURGE = "drop.purge"
"""Property of a table that is being dropped: its files are to be deleted too."""


def split_name(written: str) -> tuple[str, str]:
    """Database and name, of ``DATABASE.NAME`` or ``NAME``."""
    database, dot, name = written.partition(".")
    if not dot:
        database, name = DEFAULT_DATABASE, written
    if not database or not name:
        raise Invalid("table", written, "write DATABASE.NAME, or NAME for one in the database default")
    return database, name


def full_name(table: LakeTable) -> str:
    return f"{table.database}.{table.name}"


async def find_table(store: MetadataStore, written: str) -> LakeTable:
    database, name = split_name(written)
    table = await store.get_table(database, name)
    if table is None:
        raise NotFound(f"there is no table {database}.{name}: `astha tables list` shows those that exist")
    return table


async def current_metadata(store: MetadataStore, table: LakeTable) -> TableMetadata:
    metadata = await store.get_table_metadata(table.id)
    if metadata is None:  # dropped since it was read: a table has a version from its first moment
        raise NotFound(f"table {full_name(table)} does not exist any more")
    return metadata


async def begin_drop(store: MetadataStore, table: LakeTable, *, purge: bool) -> bool:
    """From here on the table is going: whoever sees its status may `finish_drop`, whatever becomes of the caller.

    Answers whether its files will be deleted: an earlier attempt may have wanted that.
    """
    properties = parse_json_as((await current_metadata(store, table)).properties, dict[str, str])
    if purge:
        properties[PURGE] = "true"
    await store.alter_table(table.id, status="dropping", properties=properties)
    return properties.get(PURGE) == "true"


async def finish_drop(store: MetadataStore, table: LakeTable) -> bool:
    """Drops a table whose status is ``dropping``, as `begin_drop` wanted it. False if somebody else was quicker."""
    try:
        metadata = await current_metadata(store, table)
        await store.drop_table(table.id, purge=wants_purge(metadata))
    except NotFound:
        return False
    return True


def wants_purge(metadata: TableMetadata) -> bool:
    """Whatever else somebody has written into the properties: a drop must not fail of it."""
    properties = parse_json(metadata.properties)
    return isinstance(properties, Mapping) and str(properties.get(PURGE, False)).lower() == "true"
