"""An engine that commits through the catalog, simulated: it writes Iceberg metadata and calls `commit_catalog`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from pyiceberg.io import load_file_io
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata as IcebergMetadata
from pyiceberg.table.metadata import new_table_metadata

from components.lib.lake.file_set_digest import LiveFile
from components.lib.lake.iceberg import IcebergTables, SnapshotChange, Stamp, TableCommit, live_files
from components.lib.lake.iceberg.pyiceberg_internals import updated_metadata
from components.lib.lake.iceberg.stamp import DIGEST, FILES, POSITION, REGISTRY, SCHEMA_ID, SCHEMA_VERSION, TABLE_ID
from components.lib.lake.schema.table_schema import TableSchema
from registry.contract import MetadataStore
from registry.errors import Conflict
from registry.inputs import CatalogCommit, FileDraft
from registry.models import LakeTable
from tests.parquet_files import PLAIN, as_row

_OWN = (DIGEST, FILES, POSITION)


@dataclass
class CatalogEngine:
    """``tables`` must not be the updater's: an engine loads the table again for each commit."""

    store: MetadataStore
    tables: IcebergTables
    identity: str
    conflicts: int = 0

    async def create(self, namespace: str, name: str, location: str, schema: TableSchema = PLAIN) -> LakeTable:
        table_id = await self.store.reserve_table_id()
        own = {TABLE_ID: str(table_id), REGISTRY: self.identity, SCHEMA_VERSION: "1", SCHEMA_ID: "0"}
        made = new_table_metadata(schema.iceberg, schema.partition, schema.order, location, own)
        metadata = f"{location}/metadata/00000-{uuid4()}.metadata.json"
        ToOutputFile.table_metadata(made, load_file_io(self.tables.catalog.properties, location).new_output(metadata))
        await self.store.commit_catalog(
            [
                CatalogCommit(
                    catalog=self.tables.catalog.name, namespace=namespace, name=name, expected=None, location=metadata,
                    table_id=table_id, create=schema.draft(), table_location=location, operation="metadata",
                )
            ]
        )  # fmt: skip
        table = await self.store.get_table_by_id(table_id)
        assert table is not None
        return table

    async def append(self, table: LakeTable, added: Sequence[FileDraft], schema: TableSchema = PLAIN) -> None:
        await self.commit(table, lambda _: (added, []), schema)

    async def commit(
        self,
        table: LakeTable,
        change: Callable[[dict[str, LiveFile]], tuple[Sequence[FileDraft], Sequence[LiveFile]]],
        schema: TableSchema = PLAIN,
        *,
        attempts: int = 200,
    ) -> None:
        """Commits what ``change`` makes of Iceberg's live files, again and again until it wins."""
        for _ in range(attempts):
            loaded = self.tables.load(table)
            assert loaded is not None
            added, removed = change({file.path: file for file in live_files(loaded)})
            try:
                await self._commit(table, loaded, added, removed, schema)
                return
            except Conflict:
                self.conflicts += 1
        raise AssertionError(f"{attempts} commits in a row conflicted with others")

    async def _commit(
        self,
        table: LakeTable,
        loaded: Table,
        added: Sequence[FileDraft],
        removed: Sequence[LiveFile],
        schema: TableSchema,
    ) -> None:
        draft = TableCommit(loaded)
        rows = [as_row(file, table.id) for file in added]
        draft.add_snapshot(SnapshotChange(rows, list(removed)), {schema.version: schema})
        draft.set_stamp(draft.stamp.position)
        metadata = _unstamped(updated_metadata(loaded, tuple(draft.updates)))
        location = f"{loaded.location()}/metadata/{uuid4()}.metadata.json"
        ToOutputFile.table_metadata(metadata, loaded.io.new_output(location))
        *namespace, name = loaded.name()
        await self.store.commit_catalog(
            [
                CatalogCommit(
                    catalog=self.tables.catalog.name, namespace=".".join(namespace), name=name,
                    expected=loaded.metadata_location, location=location, table_id=table.id,
                    added=added, removed=[file.path for file in removed], snapshot_id=metadata.current_snapshot_id,
                    parent_snapshot_id=loaded.metadata.current_snapshot_id,
                    operation="overwrite" if removed else "append", engine="test",
                )
            ]
        )  # fmt: skip


def _unstamped(metadata: IcebergMetadata) -> IcebergMetadata:
    """An engine knows nothing of the stamp in the summaries of our own snapshots."""
    newest = metadata.current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    for name in _OWN:
        newest.summary._additional_properties.pop(name, None)
    assert Stamp.read(metadata).snapshot == newest.snapshot_id
    return metadata
