"""Tables that PyIceberg writes, and their metadata as the catalog sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from components.lib.lake.engine_commits import FileDifference, IcebergMetadata, ManifestLists, read_difference

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
)


@contextmanager
def warehouse(directory: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{directory}/catalog.db", warehouse=directory.as_uri())
    catalog.create_namespace("shop")
    try:
        yield catalog
    finally:
        catalog.close()


def rows(*ids: int, region: str = "north") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "region": pa.array([region] * len(ids), pa.string())})


def metadata_of(table: Table) -> IcebergMetadata:
    with table.io.new_input(table.metadata_location).open() as file:
        return IcebergMetadata.parse(file.read())


def live_paths(table: Table, snapshot_id: int | None = None) -> set[str]:
    return {task.file.file_path for task in table.scan(snapshot_id=snapshot_id).plan_files()}


def difference(
    table: Table, old: int | None, new: int | None = None, lists: ManifestLists | None = None
) -> FileDifference:
    """Between two snapshots; by default to the current one."""
    metadata = metadata_of(table)
    before = None if old is None else metadata.snapshots[old]
    after = metadata.current_snapshot if new is None else metadata.snapshots[new]
    return read_difference(table.io, metadata, before, after, lists)
