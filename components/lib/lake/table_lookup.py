"""Tables by name, and the two steps of a drop."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from registry.contract import MetadataStore
from registry.errors import Invalid, NotFound
from registry.json_text import parse_json, parse_json_as
from registry.models import LakeTable, TableMetadata

DEFAULT_DATABASE = "default"

PURGE = "drop.purge"
"""Property of a table that is being dropped: its files are to be deleted too."""


class TableName(msgspec.Struct, frozen=True):
    """``DATABASE.TABLE``, split at the last dot: a table's name has no dot, and a database may be nested (``a.b``), as
    Iceberg's namespaces are. ``TABLE`` alone is in the database `default`.
    """

    database: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Raises `Invalid` if a part is empty."""
        database, dot, table = text.rpartition(".")
        if not dot:
            database = DEFAULT_DATABASE
        if not table or not all(database.split(".")):
            raise Invalid("table", text, "write DATABASE.TABLE, or TABLE for one in the database default")
        return cls(database, table)

    @classmethod
    def of(cls, table: LakeTable) -> TableName:
        return cls(table.database, table.name)

    @property
    def identifier(self) -> tuple[str, ...]:
        """Returns the table's identifier in an Iceberg catalog: its namespace and its name."""
        return (*self.database.split("."), self.table)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


def full_name(table: LakeTable) -> str:
    return f"{table.database}.{table.name}"


async def find_table(store: MetadataStore, name: str) -> LakeTable:
    """Raises `NotFound` if the registry has no table of that name, `Invalid` if the text is not a table's name."""
    wanted = TableName.parse(name)
    table = await store.get_table(wanted.database, wanted.table)
    if table is None:
        raise NotFound(f"there is no table {wanted}: `astha tables list` shows those that exist")
    return table


async def current_metadata(store: MetadataStore, table: LakeTable) -> TableMetadata:
    """Raises `NotFound` if the table was dropped since it was read: every table has a version."""
    metadata = await store.get_table_metadata(table.id)
    if metadata is None:
        raise NotFound(f"table {full_name(table)} does not exist any more")
    return metadata


async def begin_drop(store: MetadataStore, table: LakeTable, *, purge: bool) -> bool:
    """Marks the table as ``dropping``. From then on the daemon calls `finish_drop` if the caller does not.

    Returns whether its files will be deleted: an earlier attempt may have asked for that.
    """
    properties = parse_json_as((await current_metadata(store, table)).properties, dict[str, str])
    if purge:
        properties[PURGE] = "true"
    await store.alter_table(table.id, status="dropping", properties=properties)
    return properties.get(PURGE) == "true"


async def finish_drop(store: MetadataStore, table: LakeTable) -> bool:
    """Drops a table whose status is ``dropping``, as `begin_drop` requested. Returns False if it is gone already."""
    try:
        metadata = await current_metadata(store, table)
        await store.drop_table(table.id, purge=wants_purge(metadata))
    except NotFound:
        return False
    return True


def wants_purge(metadata: TableMetadata) -> bool:
    """Accepts any content of the properties: a drop must not fail because of them."""
    properties = parse_json(metadata.properties)
    return isinstance(properties, Mapping) and str(properties.get(PURGE, False)).lower() == "true"
