"""Resolves commits of other engines: adopts them into the registry, or reverts them. Only an operator decides which.

Both leave the table stamped again and marked as to be compared with the registry. The refresh that follows contains the
changes that the updater skipped while the table was stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from pyiceberg.table import Table

from components.iceberg_updater.committer import COMPARE, change_deletes
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import (
    IcebergTables,
    PartitionPaths,
    SnapshotChange,
    Stamp,
    TableCommit,
    TableProblem,
    data_files,
    files_by_path,
    live_digest,
    live_files,
    require_format,
    require_supported,
)
from components.lib.lake.iceberg.file_drafts import file_draft
from components.lib.lake.iceberg.schema_updates import same_columns, spec_key
from components.lib.lake.iceberg.stamp import SCHEMA_VERSION
from components.lib.lake.schema.table_schema import TableSchema
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.inputs import FileDraft
from registry.models import LakeTable, TableDeleteFile, TableFile


class Resolution(msgspec.Struct, frozen=True):
    """`added` and `removed` count files: of the registry after `adopt`, of the Iceberg table after `revert`."""

    table: str
    added: int
    removed: int
    snapshot: int | None


async def adopt(store: MetadataStore, tables: IcebergTables, table: LakeTable) -> Resolution:
    """Registers the files that another engine added and removes those that it removed, in one transaction.

    Raises `TableProblem` if the registry cannot represent them: delete files, an unknown partition spec, a changed
    schema. A second call after an interruption completes the first.
    """
    loaded = await asyncio.to_thread(_loaded, tables, table)
    schemas = await _schemas(store, table)
    before, after = await asyncio.to_thread(_external_change, loaded, schemas)
    gone = [path for path in before if path not in after]
    known = {file.file_path: file for file in await store.get_files(table.id, [*gone, *after])}
    added = [draft for path, draft in after.items() if path not in before and path not in known]
    removed = [known[path] for path in gone if path in known]
    name = f"iceberg-{loaded.metadata.current_snapshot_id}"
    if added and removed:
        await store.swap_files(table.id, removed, added, operation="import", operation_id=name)
    elif added:
        await store.add_files(table.id, added, operation="import", operation_id=name)
    elif removed:
        await store.remove_files(table.id, removed, reason=f"import {name}")
    await asyncio.to_thread(_mark_adopted, tables, table, loaded.metadata.current_snapshot_id)
    return _resolution(table, len(added), len(removed), await asyncio.to_thread(_loaded, tables, table))


async def revert(store: MetadataStore, tables: IcebergTables, table: LakeTable) -> Resolution:
    """Commits the registry's files and schema over the other engine's commits.

    The other engine's files stay in storage, and its snapshots stay until they expire.
    """
    schemas = await _schemas(store, table)
    loaded = await asyncio.to_thread(_loaded, tables, table)
    require_format(loaded)
    live = await asyncio.to_thread(files_by_path, loaded)
    before = Digest()
    for live_file in live.values():
        before.add(live_file)
    added: list[TableFile] = []
    async for file in _registered(store, table):
        if live.get(file.file_path) == LiveFile.of(file):
            del live[file.file_path]
        else:
            added.append(file)
    removed = list(live.values())
    deletes = await _delete_files(store, table)
    change = SnapshotChange(added, removed)
    await asyncio.to_thread(_overwrite, tables, table, loaded, schemas, change, deletes, before)
    return _resolution(table, len(added), len(removed), await asyncio.to_thread(_loaded, tables, table))


async def _registered(store: MetadataStore, table: LakeTable) -> AsyncIterator[TableFile]:
    async with store.consistent_read() as snapshot:
        async for page in snapshot.rows(TableFile, table_id=table.id):
            for file in page:
                yield file


async def _delete_files(store: MetadataStore, table: LakeTable) -> list[TableDeleteFile]:
    found: list[TableDeleteFile] = []
    while page := await store.list_delete_files(table.id, after=found[-1].id if found else 0):
        found += page
    return found


def _overwrite(
    tables: IcebergTables,
    table: LakeTable,
    loaded: Table,
    schemas: dict[int, TableSchema],
    change: SnapshotChange,
    deletes: list[TableDeleteFile],
    before: Digest,
) -> None:
    expected = loaded.metadata.current_snapshot_id

    def build(draft: TableCommit) -> None:
        _require_current(draft, expected)
        draft.evolve(schemas[max(schemas)])
        draft.restart_digest(before)
        change_deletes(change, draft.table, deletes)
        if change.added or change.removed or change.deletes_added or change.deletes_removed:
            draft.add_snapshot(change, schemas)
        draft.set_stamp(None)
        draft.stop(COMPARE)

    tables.commit(table, build)


def _mark_adopted(tables: IcebergTables, table: LakeTable, expected: int | None) -> None:
    def build(draft: TableCommit) -> None:
        _require_current(draft, expected)
        draft.restart_digest(live_digest(draft.table))
        draft.set_stamp(None)
        draft.stop(COMPARE)

    tables.commit(table, build)


def _require_current(draft: TableCommit, expected: int | None) -> None:
    found = draft.table.metadata.current_snapshot_id
    if found != expected:
        raise TableProblem(f"snapshot {found} was committed while {expected} was being read: try again")


def _external_change(table: Table, schemas: dict[int, TableSchema]) -> tuple[dict[str, LiveFile], dict[str, FileDraft]]:
    """Returns the live files as of Astha's last commit, and those of now."""
    require_supported(table)
    _require_known_schema(table, schemas)
    stamp = Stamp.read(table.metadata)
    last = None if stamp.snapshot is None else table.metadata.snapshot_by_id(stamp.snapshot)
    if stamp.snapshot is not None and last is None:
        raise TableProblem(
            f"snapshot {stamp.snapshot}, Astha's last, has expired, so its successors cannot be told apart: "
            "`astha iceberg revert` restores the registry's files"
        )
    before = {} if last is None else {file.path: file for file in live_files(table, last)}
    paths = PartitionPaths(table.metadata)
    versions = {spec_key(schema.partition): version for version, schema in sorted(schemas.items())}
    after: dict[str, FileDraft] = {}
    for file in data_files(table):
        version = versions.get(spec_key(table.metadata.specs()[file.spec_id]))
        if version is None:
            raise TableProblem(f"{file.file_path} has a partition spec that no schema version of the table has")
        after[file.file_path] = file_draft(file, paths.of(file), version)
    for live_file in live_files(table):  # raises for a file that is not Parquet
        assert live_file.path in after  # noqa: S101  (the same files)
    return before, after


def _require_known_schema(table: Table, schemas: dict[int, TableSchema]) -> None:
    version = int(table.metadata.properties.get(SCHEMA_VERSION, 0))
    if version not in schemas or not same_columns(table.schema(), schemas[version].iceberg):
        raise TableProblem(
            "its schema was changed by another engine, too: first add a schema version with that change to the "
            "registry's table, or run `astha iceberg revert`"
        )


async def _schemas(store: MetadataStore, table: LakeTable) -> dict[int, TableSchema]:
    rows = await store.list_table_metadata(table.id)
    return {row.schema_version: TableSchema.read(row, table=f"{table.database}.{table.name}") for row in rows}


def _loaded(tables: IcebergTables, table: LakeTable) -> Table:
    found = tables.load(table)
    if found is None:
        raise NotFound(f"{table.database}.{table.name} has no Iceberg table: the daemon creates it")
    return found


def _resolution(table: LakeTable, added: int, removed: int, loaded: Table) -> Resolution:
    return Resolution(f"{table.database}.{table.name}", added, removed, loaded.metadata.current_snapshot_id)
