"""Where other tables are: their locations, and the directories of their metadata, which may be elsewhere."""

from __future__ import annotations

from components.lib.lake.iceberg.catalog import NAME
from registry.contract import MetadataStore


async def metadata_directories(store: MetadataStore, except_for: str | None) -> list[tuple[str, str]]:
    """Returns the directory of each table's current metadata file in the registry's catalog, with the table's name.
    `except_for` is the metadata file of a table to leave out.
    """
    found: list[tuple[str, str]] = []
    for namespace in await store.list_catalog_namespaces(NAME):
        after = ""
        while page := await store.list_catalog_tables(NAME, namespace, after=after):
            found += [
                (row.metadata_location.rpartition("/")[0], f"{namespace}.{row.table_name}")
                for row in page
                if row.metadata_location is not None and row.metadata_location != except_for
            ]
            after = page[-1].table_name
    return found


async def other_places(store: MetadataStore, table_id: int | None, metadata_file: str | None) -> list[tuple[str, str]]:
    """Returns the locations of all other tables and the directories of their metadata, with their names.

    `table_id` and `metadata_file` are of the table to leave out, which may not exist any more.
    """
    tables = [table for table in await store.list_tables() if table.id != table_id]
    places = [(table.location, f"{table.database}.{table.name}") for table in tables]
    return [*places, *await metadata_directories(store, metadata_file)]
