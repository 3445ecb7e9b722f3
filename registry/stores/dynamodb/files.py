"""Data files: added, removed or swapped in one transaction with the statistics that count them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeVar

import msgspec

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, AlreadyInserted, Invalid, NotFound
from registry.inputs import FileDraft, Registration
from registry.models import (
    Compaction,
    FileOperation,
    FileSizes,
    LakeTable,
    TableDeleteFile,
    TableFile,
    TableInsert,
    TableMetadata,
    TableStats,
    UploadIntent,
)
from registry.stores.dynamodb.consumer_groups import DynamoConsumerGroups
from registry.stores.dynamodb.reader import Range, Reader
from registry.stores.dynamodb.tables import DynamoTables
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.sql.files import (
    COUNTED,
    FileChange,
    claimed_files,
    differences,
    file_change,
    files_changed,
    first_paths,
    lost_intents,
    merge_changes,
    require_listed,
    unseen_deletes,
)
from registry.stores.sql.tables import deletion_row, deletion_rows

FileRow = TypeVar("FileRow", TableFile, TableDeleteFile)


class DynamoFiles(DynamoTables, DynamoConsumerGroups):
    async def add_files(
        self,
        table_id: int,
        files: Sequence[FileDraft],
        *,
        operation: FileOperation = "insert",
        operation_id: str | None = None,
        intents_of: str | None = None,
    ) -> list[TableFile]:
        return await self._change(FileChange(table_id, [], files, operation, operation_id, "added", intents_of))

    async def register_files(self, registrations: Sequence[Registration]) -> list[list[TableFile]]:
        changes = [file_change(part) for part in registrations]
        for change in changes:
            change.check_operation()
        joined = merge_changes(changes)
        for change in joined:
            change.check()

        async def apply(tx: Transaction) -> list[TableFile]:
            return [file for change in joined for file in await self._apply(tx, change)]

        added = await self._transact(apply) if joined else []
        by_path = {(file.table_id, file.file_path): file for file in added}
        return [[by_path[change.table_id, draft.file_path] for draft in change.new] for change in changes]

    async def remove_files(self, table_id: int, files: Sequence[TableFile], *, reason: str) -> None:
        await self._change(FileChange(table_id, files, [], "insert", None, reason))

    async def swap_files(
        self,
        table_id: int,
        old: Sequence[TableFile],
        new: Sequence[FileDraft],
        *,
        operation_id: str,
        operation: FileOperation = "compaction",
        intents_of: str | None = None,
        seen_deletes: Sequence[TableDeleteFile] = (),
        removed_deletes: Sequence[TableDeleteFile] = (),
    ) -> list[TableFile]:
        reason = f"{operation} {operation_id}"
        change = FileChange(
            table_id, old, new, operation, operation_id, reason, intents_of,
            seen_deletes=seen_deletes, removed_deletes=removed_deletes,
        )  # fmt: skip
        return await self._change(change)

    async def _change(self, change: FileChange) -> list[TableFile]:
        change.check()
        if not change.old and not change.new and not change.removed_deletes:
            return []

        async def apply(tx: Transaction) -> list[TableFile]:
            if change.operation in ("compaction", "rollback"):
                await self._table(tx, change.table_id)
                await self._require_seen_deletes(tx, change)
                await self._remove_delete_files(tx, change.table_id, change.removed_deletes, change.reason)
            return await self._apply(tx, change) if change.old or change.new else []

        return await self._transact(apply)

    async def _require_seen_deletes(self, tx: Transaction, change: FileChange) -> None:
        partitions = {"", *(file.partition_path for file in change.old)}  # "": for the whole table
        seen = {file.id for file in (*change.seen_deletes, *change.removed_deletes)}
        rows = await tx.rows(
            TableDeleteFile, change.table_id, where=lambda row: row.partition_path in partitions and row.id not in seen
        )
        if rows:
            raise unseen_deletes(change.table_id, [row.file_path for row in rows])

    async def _remove_delete_files(
        self, tx: Transaction, table_id: int, files: Sequence[TableDeleteFile], reason: str
    ) -> None:
        found = await tx.get_many(TableDeleteFile, [(table_id, file.id) for file in files])
        missing = [file.file_path for file in files if (table_id, file.id) not in found]
        if missing:
            raise files_changed(table_id, missing)
        for row in found.values():
            tx.delete(row)
        await self._list_for_deletion(tx, deletion_rows(files, reason, tx.now))

    async def list_delete_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableDeleteFile]:
        return await self._list(TableDeleteFile, table_id, partition_path, after, limit)

    async def _list(
        self,
        kind: type[FileRow],
        table_id: int,
        partition_path: str | None,
        after: int,
        limit: int,
    ) -> list[FileRow]:
        validation.integer("table_id", table_id)
        validation.optional("partition_path", partition_path, validation.path)
        validation.integer("after", after)
        validation.integer("limit", limit, 1)
        where = None if partition_path is None else (lambda row: row.partition_path == partition_path)
        within = Range(after=(after,))
        return await self._read(lambda reader: reader.rows(kind, table_id, within=within, where=where, limit=limit))

    async def _apply(self, tx: Transaction, change: FileChange) -> list[TableFile]:
        table = await self._table(tx, change.table_id)
        await self._record_inserts(tx, change.inserts)
        await self._advance(tx, change.advances)
        await self._remove_old_files(tx, change)
        if change.operation == "compaction":
            await self._end_compaction(tx, change)
        added: list[TableFile] = []
        paths = [draft.file_path for draft in change.new]
        if change.new:
            await self._require_new(tx, change, paths)
            rows = (TableFile(tx.new_id(TableFile), *values) for values in change.new_rows(tx.now))  # type: ignore[arg-type]
            added = [tx.insert(row) for row in rows]
        if change.old or change.new:
            await self._update_statistics(tx, table, change)
        listed = await self._unlist(tx, change.table_id, paths)
        if change.operation == "rollback" and change.new:
            require_listed(change, listed)
        if change.operation == "external" and change.new:
            claimed = await tx.get_many(UploadIntent, [(path,) for path in paths])
            if claimed:
                raise claimed_files(change.table_id, sorted(row.path for row in claimed.values()))
        return added

    async def _require_new(self, tx: Transaction, change: FileChange, paths: Sequence[str]) -> None:
        if change.operation != "external":
            held = await self._delete_intents(tx, paths, owner=change.intents_of)
            lost = [path for path in paths if path not in held]
            if change.intents_of is not None and lost:
                raise lost_intents(change, lost)
        wanted: dict[tuple[str | int, ...], None] = {
            (change.table_id, draft.schema_version): None for draft in change.new
        }
        versions = await tx.get_many(TableMetadata, wanted)
        for key in wanted:
            if key not in versions:
                raise NotFound(f"table {change.table_id} has no schema version {key[1]}")
        taken = await tx.find_many(TableFile, "path", [(change.table_id, path) for path in paths])
        if taken:
            shown = first_paths(sorted(row.file_path for row in taken.values()))
            raise AlreadyExists(f"table {change.table_id} already has a file with this path: {shown}")

    async def _record_inserts(self, tx: Transaction, inserts: Iterable[tuple[TableInsert, Sequence[str]]]) -> None:
        for record, paths in inserts:
            if await tx.get(TableInsert, record.table_id, record.insert_id) is not None:
                raise AlreadyInserted(f"table {record.table_id} has the insert {record.insert_id!r} already", paths)
            tx.insert(msgspec.structs.replace(record, created_at=tx.now))

    async def get_insert(self, table_id: int, insert_id: str) -> TableInsert | None:
        validation.integer("table_id", table_id)
        validation.catalog_name("insert_id", insert_id)
        return await self._get(TableInsert, table_id, insert_id)

    async def _remove_old_files(self, tx: Transaction, change: FileChange) -> None:
        found = await tx.get_many(TableFile, [(change.table_id, file.id) for file in change.old])
        changed = change.changed({row.id: row for row in found.values()})
        if changed:
            raise files_changed(change.table_id, changed)
        for file in change.old:
            tx.delete(file)
        await self._list_for_deletion(tx, [deletion_row(file, change.reason, tx.now) for file in change.old])

    async def _end_compaction(self, tx: Transaction, change: FileChange) -> None:
        """Marks the compaction done in the swap's transaction, so that a crash can't leave the journal wrong."""
        row = await tx.find(Compaction, "operation", str(change.operation_id))
        if row is not None and row.table_id == change.table_id and row.status in ("running", "aborted"):
            tx.replace(
                row, status="done", reason=None, ended_at=tx.now, updated_at=tx.now,
                output_files=len(change.new),
                output_bytes=sum(draft.file_size for draft in change.new),
                row_count=sum(draft.row_count for draft in change.new),
            )  # fmt: skip

    async def _update_statistics(self, tx: Transaction, table: LakeTable, change: FileChange) -> None:
        """Adds the difference to the statistics of the partitions and of the table."""
        by_partition = differences(change)
        found = await tx.find_many(TableStats, "partition", [(table.id, path) for path in by_partition])
        total = dict.fromkeys(COUNTED, 0)
        for path, difference in by_partition.items():
            counts = dict(zip(COUNTED, difference, strict=True))
            total = {name: total[name] + counts[name] for name in COUNTED}
            old = found.get((table.id, path))
            if old is None:
                old = TableStats(tx.new_id(TableStats), table.id, path, 0, 0, 0, tx.now, tx.now, tx.now)
                tx.insert(msgspec.structs.replace(old, **counts))
            else:
                tx.replace(old, **_sums(old, counts), last_modified=tx.now, updated_at=tx.now)
        tx.replace(table, **_sums(table, total), last_modified=tx.now, updated_at=tx.now)

    async def get_files(self, table_id: int, paths: Sequence[str]) -> list[TableFile]:
        validation.integer("table_id", table_id)
        validation.every("path", paths, validation.non_empty_path)
        if not paths:
            return []
        keys: list[tuple[str | int, ...]] = [(table_id, path) for path in paths]
        found = await self._read(lambda reader: reader.find_many(TableFile, "path", keys))
        return sorted(found.values(), key=lambda file: file.id)

    async def list_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableFile]:
        return await self._list(TableFile, table_id, partition_path, after, limit)

    async def stream_files(self, table_id: int, *, partition_path: str | None = None) -> AsyncIterator[TableFile]:
        after = 0
        while page := await self.list_files(table_id, partition_path=partition_path, after=after):
            for file in page:
                yield file
            after = page[-1].id

    async def get_statistics(self, table_id: int) -> list[TableStats]:
        validation.integer("table_id", table_id)
        rows = await self._read(lambda reader: reader.rows(TableStats, table_id))
        return sorted(rows, key=lambda row: row.partition_path)

    async def count_file_sizes(self, table_id: int, bounds: Sequence[int]) -> list[FileSizes]:
        validation.integer("table_id", table_id)
        validation.every("bounds", bounds, validation.integer)
        if list(bounds) != sorted({0, *bounds}):
            raise Invalid("bounds", list(bounds), "must ascend from 0")

        async def read(reader: Reader) -> list[FileSizes]:
            files: Counter[tuple[int, bool]] = Counter()
            sizes: Counter[tuple[int, bool]] = Counter()
            async for page in reader.pages(TableFile, table_id):
                for file in page:
                    key = (bounds[bisect_right(bounds, file.file_size) - 1], file.operation == "compaction")
                    files[key] += 1
                    sizes[key] += file.file_size
            return [FileSizes(*key, files[key], sizes[key]) for key in sorted(files)]

        return await self._read(read)

    async def recount_statistics(self, table_id: int) -> LakeTable:
        """Writes only rows that are wrong, so that recounting correct statistics causes no change events."""
        validation.integer("table_id", table_id)

        async def change(tx: Transaction) -> LakeTable:
            table = await self._table(tx, table_id)
            right: dict[str, tuple[int, int, int]] = {}
            for file in await tx.rows(TableFile, table_id):
                rows, count, size = right.get(file.partition_path, (0, 0, 0))
                right[file.partition_path] = (rows + file.row_count, count + 1, size + file.file_size)
            total = tuple(sum(column) for column in zip(*right.values(), strict=True)) or (0, 0, 0)
            for stats in await tx.rows(TableStats, table_id):
                counted = right.pop(stats.partition_path, (0, 0, 0))
                if counted != _counted(stats):
                    values = dict(zip(COUNTED, counted, strict=True))
                    tx.replace(stats, **values, last_modified=tx.now, updated_at=tx.now)
            for path, counted in right.items():
                tx.insert(TableStats(tx.new_id(TableStats), table_id, path, *counted, tx.now, tx.now, tx.now))
            if total == _counted(table):
                return table
            return tx.replace(table, **dict(zip(COUNTED, total, strict=True)), updated_at=tx.now)

        return await self._transact(change)


def _counted(row: TableStats | LakeTable) -> tuple[int, ...]:
    return tuple(getattr(row, name) for name in COUNTED)


def _sums(row: TableStats | LakeTable, counts: dict[str, int]) -> dict[str, int]:
    sums = {name: getattr(row, name) + counts[name] for name in COUNTED}
    for name, value in sums.items():
        if not 0 <= value <= validation.MAX_INT:
            raise Invalid(name, value, "the statistics can't hold the sum")
    return sums
