"""What another engine has committed: taken over into the registry, or undone. Both by a person's decision only.

Either way the table ends with a stamp of its own and the remark that it is to be compared with the registry: whatever
the updater left out while the table was stopped comes with the refresh that the remark leads to.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator

import msgspec
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from components.iceberg_updater.committer import COMPARE
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
from components.lib.lake.iceberg.schema_updates import same_columns, spec_key
from components.lib.lake.iceberg.stamp import SCHEMA_VERSION
from components.lib.lake.schema.table_schema import TableSchema
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.inputs import FileDraft
from registry.json_text import JsonText, to_json_text
from registry.models import ColumnStats, LakeTable, TableFile


class Outcome(msgspec.Struct, frozen=True):
    """Of adopt, what the registry gained and lost; of revert, what Iceberg did."""

    table: str
    added: int
    removed: int
    snapshot: int | None


async def adopt(store: MetadataStore, tables: IcebergTables, table: LakeTable) -> Outcome:
    """Registers the files that another engine has added, and removes those that it has removed, in one transaction.

    TableProblem if they can't be the registry's: delete files, an unknown partition spec, a changed schema. Doing it
    again after an interruption completes it.
    """
    loaded = await asyncio.to_thread(_loaded, tables, table)
    schemas = await _schemas(store, table)
    before, after = await asyncio.to_thread(_foreign_change, loaded, schemas)
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
    await asyncio.to_thread(_take_over, tables, table, loaded.metadata.current_snapshot_id)
    return _outcome(table, len(added), len(removed), await asyncio.to_thread(_loaded, tables, table))


async def revert(store: MetadataStore, tables: IcebergTables, table: LakeTable) -> Outcome:
    """Commits the registry's files and schema over whatever another engine has committed.

    Its files stay where they are, and its snapshots until they expire.
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
    await asyncio.to_thread(_overwrite, tables, table, loaded, schemas, SnapshotChange(added, removed), before)
    return _outcome(table, len(added), len(removed), await asyncio.to_thread(_loaded, tables, table))


async def _registered(store: MetadataStore, table: LakeTable) -> AsyncIterator[TableFile]:
    async with store.consistent_read() as snapshot:
        async for page in snapshot.rows(TableFile):
            for file in page:
                if file.table_id == table.id:
                    yield file


def _overwrite(
    tables: IcebergTables,
    table: LakeTable,
    loaded: Table,
    schemas: dict[int, TableSchema],
    change: SnapshotChange,
    before: Digest,
) -> None:
    expected = loaded.metadata.current_snapshot_id

    def build(draft: TableCommit) -> None:
        _require_unmoved(draft, expected)
        draft.evolve(schemas[max(schemas)])
        draft.restart_digest(before)
        if draft.drop_delete_files() or change.added or change.removed:
            draft.add_snapshot(change, schemas)
        draft.set_stamp(None)
        draft.stop(COMPARE)

    tables.commit(table, build)


def _take_over(tables: IcebergTables, table: LakeTable, expected: int | None) -> None:
    def build(draft: TableCommit) -> None:
        _require_unmoved(draft, expected)
        draft.restart_digest(live_digest(draft.table))
        draft.set_stamp(None)
        draft.stop(COMPARE)

    tables.commit(table, build)


def _require_unmoved(draft: TableCommit, expected: int | None) -> None:
    found = draft.table.metadata.current_snapshot_id
    if found != expected:
        raise TableProblem(f"snapshot {found} was committed while {expected} was being looked at: try again")


def _foreign_change(table: Table, schemas: dict[int, TableSchema]) -> tuple[dict[str, LiveFile], dict[str, FileDraft]]:
    """What was live when Astha committed last, and what is live now."""
    require_supported(table)
    _require_known_schema(table, schemas)
    stamp = Stamp.read(table.metadata)
    last = None if stamp.snapshot is None else table.metadata.snapshot_by_id(stamp.snapshot)
    if stamp.snapshot is not None and last is None:
        raise TableProblem(
            f"snapshot {stamp.snapshot}, Astha's last, has expired, so nobody knows what came after it: "
            "`astha iceberg revert` brings back the registry's files"
        )
    before = {} if last is None else {file.path: file for file in live_files(table, last)}
    paths = PartitionPaths(table.metadata)
    versions = {spec_key(schema.partition): version for version, schema in sorted(schemas.items())}
    after: dict[str, FileDraft] = {}
    for file in data_files(table):
        version = versions.get(spec_key(table.metadata.specs()[file.spec_id]))
        if version is None:
            raise TableProblem(f"{file.file_path} is partitioned in a way that no schema version of the table is")
        after[file.file_path] = _draft(file, paths.of(file), version)
    for live_file in live_files(table):  # refuses what is not Parquet
        assert live_file.path in after  # noqa: S101  (the same files)
    return before, after


def _require_known_schema(table: Table, schemas: dict[int, TableSchema]) -> None:
    version = int(table.metadata.properties.get(SCHEMA_VERSION, 0))
    if version not in schemas or not same_columns(table.schema(), schemas[version].iceberg):
        raise TableProblem(
            "its schema was changed by another engine, too: add a version with that change to the registry's table "
            "first, or `astha iceberg revert`"
        )


def _draft(file: DataFile, partition_path: str, version: int) -> FileDraft:
    return FileDraft(
        file_path=file.file_path,
        file_size=file.file_size_in_bytes,
        row_count=file.record_count,
        schema_version=version,
        partition_path=partition_path,
        column_stats=_statistics(file),
    )


def _statistics(file: DataFile) -> JsonText | None:
    counts = file.value_counts or {}
    if not counts:
        return None
    nulls, nans, sizes = file.null_value_counts or {}, file.nan_value_counts or {}, file.column_sizes or {}
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    return to_json_text(
        {
            str(key): ColumnStats(
                value_count=count,
                null_count=nulls.get(key, 0),
                nan_count=nans.get(key),
                size_bytes=sizes.get(key),
                lower=None if key not in lower else b64encode(lower[key]).decode(),
                upper=None if key not in upper else b64encode(upper[key]).decode(),
            )
            for key, count in counts.items()
        }
    )


async def _schemas(store: MetadataStore, table: LakeTable) -> dict[int, TableSchema]:
    rows = await store.list_table_metadata(table.id)
    return {row.schema_version: TableSchema.of(row, table=f"{table.database}.{table.name}") for row in rows}


def _loaded(tables: IcebergTables, table: LakeTable) -> Table:
    found = tables.load(table)
    if found is None:
        raise NotFound(f"{table.database}.{table.name} has no Iceberg table: the daemon creates it")
    return found


def _outcome(table: LakeTable, added: int, removed: int, loaded: Table) -> Outcome:
    return Outcome(f"{table.database}.{table.name}", added, removed, loaded.metadata.current_snapshot_id)
