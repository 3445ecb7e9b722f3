"""Commits of another engine through the catalog, without the server: Iceberg's metadata and the registry's rows."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from uuid import uuid4

from pyiceberg.manifest import DataFile

from components.lib.lake.file_set_digest import LiveFile
from components.lib.lake.iceberg import IcebergTables, SnapshotChange, TableCommit
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.locations import parse
from registry.contract import MetadataStore
from registry.inputs import CatalogCommit, DeleteFileDraft, FileDraft
from registry.models import LakeTable, TableFile
from tests.delete_files import delete_draft
from tests.parquet_files import PLAIN, as_row


async def commit_as_engine(
    store: MetadataStore,
    tables: IcebergTables,
    table: LakeTable,
    *,
    added: Sequence[FileDraft] = (),
    removed: Sequence[TableFile] = (),
    deletes: Sequence[DataFile] = (),
    drafts: Sequence[DeleteFileDraft] | None = None,
    schema: TableSchema = PLAIN,
) -> None:
    """Adds a snapshot, keeps the stamp as the catalog does, and commits the rows.

    `drafts`: instead of those that follow from `deletes`.
    """
    change = SnapshotChange(
        [as_row(draft, table.id) for draft in added], [LiveFile.of(file) for file in removed], deletes_added=[*deletes]
    )

    def build(draft: TableCommit) -> None:
        draft.add_snapshot(change, {schema.version: schema})
        draft.set_stamp(draft.stamp.position)

    tables.commit(table, build)
    loaded = tables.load(table)
    assert loaded is not None
    before = loaded.metadata_location
    after = f"{before.rpartition('/')[0]}/{before.rpartition('/')[2].split('-')[0]}-{uuid4()}.metadata.json"
    shutil.copy(parse(before).path, parse(after).path)
    commit = CatalogCommit(
        catalog="astha",
        namespace=table.database,
        name=table.name,
        expected=before,
        location=after,
        table_id=table.id,
        added=added,
        removed=[file.file_path for file in removed],
        deletes_added=[delete_draft(file) for file in deletes] if drafts is None else drafts,
        snapshot_id=loaded.metadata.current_snapshot_id,
        operation="overwrite" if added else "delete",
        engine="test",
    )
    await store.commit_catalog([commit])
