"""Data files: added, removed or swapped in one transaction with the statistics that count them.

All three are a `FileChange`: old rows removed, new rows inserted, statistics updated by the difference.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import get_args

import msgspec
from sqlalchemy import Select, case, cast, delete, exists, func, insert, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.contract import PAGE
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound
from registry.inputs import Advance, FileDraft, Registration, validate
from registry.models import FileOperation, FileSizes, LakeTable, TableDeleteFile, TableFile, TableInsert, TableStats
from registry.schema import (
    BigInt,
    compactions,
    consumer_offsets,
    files_awaiting_deletion,
    table_delete_files,
    table_files,
    table_stats,
    tables,
    upload_intents,
)
from registry.stores.sql.base import select_rows
from registry.stores.sql.consumer_groups import SqlConsumerGroups, check_advances, offsets_moved
from registry.stores.sql.inserts import SqlInserts
from registry.stores.sql.tables import DELETION_COLUMNS, SqlTables, deletion_row, deletion_rows

COUNTED = ("row_count", "file_count", "total_size")
NEW_COLUMNS = tuple(name for name in TableFile.__struct_fields__ if name != "id")


class FileChange(msgspec.Struct, frozen=True):
    """Replaces the `old` rows, as the caller read them, by `new` ones."""

    table_id: int
    old: Sequence[TableFile]
    new: Sequence[FileDraft]
    operation: FileOperation
    operation_id: str | None
    reason: str  # why the old files are removed
    intents_of: str | None = None  # the required owner of the new files' upload intents
    advances: Sequence[Advance] = ()
    seen_deletes: Sequence[TableDeleteFile] = ()  # delete files that the new files take into account
    removed_deletes: Sequence[TableDeleteFile] = ()  # those of them that no other data file needs
    inserts: Sequence[tuple[TableInsert, Sequence[str]]] = ()  # those with an id, and the paths of their files

    def check(self) -> None:
        self.check_operation()
        validate(self.new)
        for field in ("file_size", "row_count"):
            total = sum(getattr(draft, field) for draft in self.new)
            if total > validation.MAX_INT:
                raise Invalid(
                    field, total, "the sum over this call does not fit 64 bits, so the statistics can't hold it"
                )
        paths = [draft.file_path for draft in self.new]
        twice = _repeated([*paths, *(file.file_path for file in self.old)])
        if twice is not None:
            raise Invalid("file_path", twice, "appears twice in one call")
        for file in self.old:
            if file.table_id != self.table_id:
                raise Invalid("file", file.file_path, f"belongs to table {file.table_id}, not {self.table_id}")

    def check_operation(self) -> None:
        """Checks everything but the files."""
        validation.integer("table_id", self.table_id)
        validation.one_of("operation", self.operation, get_args(FileOperation))
        validation.optional("operation_id", self.operation_id, validation.name)
        validation.non_empty("reason", self.reason)
        validation.optional("intents_of", self.intents_of, validation.non_empty)
        check_advances(self.advances)
        for record, _ in self.inserts:
            validation.catalog_name("insert_id", record.insert_id)
        if self.operation == "compaction" and self.operation_id is None:
            raise Invalid("operation_id", None, "is required for a compaction")

    def new_rows(self, now: int) -> list[tuple[object, ...]]:
        return [
            (
                self.table_id, draft.file_name, draft.file_path, draft.file_size, draft.file_type,
                draft.partition_path, draft.row_count, draft.checksum, draft.is_compressed, draft.schema_version,
                draft.column_stats, self.operation, self.operation_id, now, now,
            )
            for draft in self.new
        ]  # fmt: skip

    def changed(self, current: dict[int, TableFile]) -> list[str]:
        """Returns the paths of old files that are gone or changed since they were read."""
        return [file.file_path for file in self.old if current.get(file.id) != file]


class SqlFiles(SqlTables, SqlConsumerGroups, SqlInserts):
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
        async with self._explaining_errors(joined):
            added = await self._change_all(joined)
        by_path = {(file.table_id, file.file_path): file for file in added}
        return [[by_path[change.table_id, draft.file_path] for draft in change.new] for change in changes]

    async def _change_all(self, changes: Sequence[FileChange]) -> list[TableFile]:
        if not changes:
            return []
        if len(changes) == 1:
            return await self._change_files(changes[0])
        async with self._transaction() as connection:
            return [file for change in changes for file in await self._apply(connection, change)]

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
            table_id,
            old,
            new,
            operation,
            operation_id,
            reason,
            intents_of,
            seen_deletes=seen_deletes,
            removed_deletes=removed_deletes,
        )
        return await self._change(change)

    async def _change(self, change: FileChange) -> list[TableFile]:
        change.check()
        if not change.old and not change.new and not change.removed_deletes:
            return []
        looks_at_deletes = change.operation in ("compaction", "rollback")
        async with self._explaining_errors([change]):
            added = await (self._swap(change) if looks_at_deletes else self._change_files(change))
        order = {draft.file_path: index for index, draft in enumerate(change.new)}
        return sorted(added, key=lambda file: order[file.file_path])

    @asynccontextmanager
    async def _explaining_errors(self, changes: Sequence[FileChange]) -> AsyncIterator[None]:
        """Replaces the database's errors by ones that name the table and what is wrong."""
        try:
            yield
        except AlreadyExists as error:
            if str(error).startswith(
                f"{consumer_offsets.primary_key.name}:"
            ):  # the group's first commit, made concurrently
                raise offsets_moved([step for change in changes for step in change.advances], {}) from None
            of = ", ".join(sorted({str(change.table_id) for change in changes}))
            raise AlreadyExists(f"table {of} already has a file with this path: {error}") from None
        except NotFound:
            for change in changes:
                await self._explain_missing_version(change)
                for step in change.advances:
                    await self._explain_missing(step.group_id, [(step.topic, step.partition_id)])
            raise

    async def _swap(self, change: FileChange) -> list[TableFile]:
        """Several statements: delete files are compared after the table was locked. A commit that adds one for these
        data files leaves their rows as they are.
        """
        async with self._transaction() as connection:
            await self._lock_table(connection, change.table_id)
            await self._require_seen_deletes(connection, change)
            await self._remove_delete_files(connection, change.table_id, change.removed_deletes, change.reason)
            return await self._apply(connection, change) if change.old or change.new else []

    async def _require_seen_deletes(self, connection: AsyncConnection, change: FileChange) -> None:
        columns = table_delete_files.c
        partitions = sorted({"", *(file.partition_path for file in change.old)})  # "": for the whole table
        given = self._bind_rows([columns.partition_path], [(path,) for path in partitions])
        query = select(columns.id, columns.file_path).where(
            columns.table_id == change.table_id, columns.partition_path.in_(select(given.c.partition_path))
        )
        seen = {file.id for file in (*change.seen_deletes, *change.removed_deletes)}
        unseen = [path for number, path in await connection.execute(query) if number not in seen]
        if unseen:
            raise unseen_deletes(change.table_id, unseen)

    async def _remove_delete_files(
        self, connection: AsyncConnection, table_id: int, files: Sequence[TableDeleteFile], reason: str
    ) -> None:
        if not files:
            return
        columns = table_delete_files.c
        given = self._bind_rows([columns.id], [(file.id,) for file in files])
        removed = (
            delete(table_delete_files)
            .where(columns.table_id == table_id, columns.id.in_(select(given.c.id)))
            .returning(columns.id)
        )
        gone = set((await connection.execute(removed)).scalars())
        missing = [file.file_path for file in files if file.id not in gone]
        if missing:
            raise files_changed(table_id, missing)
        rows = deletion_rows(files, reason, self._clock.now_ms())
        await self._insert_many(connection, files_awaiting_deletion, DELETION_COLUMNS, rows)

    async def list_delete_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableDeleteFile]:
        validation.integer("table_id", table_id)
        validation.optional("partition_path", partition_path, validation.path)
        validation.integer("after", after)
        validation.integer("limit", limit, 1)
        columns = table_delete_files.c
        query = select_rows(TableDeleteFile).where(columns.table_id == table_id, columns.id > after)
        if partition_path is not None:
            query = query.where(columns.partition_path == partition_path)
        return await self._rows(TableDeleteFile, query.order_by(columns.id).limit(limit))

    async def _change_files(self, change: FileChange) -> list[TableFile]:
        """Applies one change. PostgreSQL overrides this with a single statement."""
        async with self._transaction() as connection:
            return await self._apply(connection, change)

    async def _apply(self, connection: AsyncConnection, change: FileChange) -> list[TableFile]:
        """Locks the table, checks, writes."""
        now = self._clock.now_ms()
        await self._lock_table(connection, change.table_id)
        await self._record_inserts(connection, change.inserts, now)
        if change.advances:
            await self._advance(connection, change.advances, now)
        if change.old:
            await self._remove_old_files(connection, change, now)
        if change.operation == "compaction":
            await self._end_compaction(connection, change, now)
        if not change.new:
            if change.old:
                await self._update_statistics(connection, change, now)
            return []
        if change.operation != "external":
            await self._complete_intents(connection, change)
        await self._insert_many(connection, table_files, NEW_COLUMNS, change.new_rows(now))
        await self._update_statistics(connection, change, now)
        paths = self._new_paths(change)
        listed = await connection.execute(
            delete(files_awaiting_deletion)
            .where(
                files_awaiting_deletion.c.table_id == change.table_id,
                files_awaiting_deletion.c.file_path.in_(paths),
            )
            .returning(files_awaiting_deletion.c.file_path)
        )
        if change.operation == "rollback":
            require_listed(change, set(listed.scalars()))
        if change.operation == "external":
            await self._require_unclaimed(connection, change)
        query = select_rows(TableFile).where(
            table_files.c.table_id == change.table_id, table_files.c.file_path.in_(paths)
        )
        return [TableFile(*row) for row in await connection.execute(query)]

    async def _require_unclaimed(self, connection: AsyncConnection, change: FileChange) -> None:
        """Call it after the new files are off the list of files awaiting deletion: a cleaner that was faster has
        recorded an upload intent for what it claimed, and may be deleting it.
        """
        paths = sorted(await self._claimed(connection, change))
        if paths:
            raise claimed_files(change.table_id, paths)

    async def _claimed(self, connection: AsyncConnection, change: FileChange) -> Sequence[str]:
        """Returns the paths of new files that have an upload intent."""
        claimed = select(upload_intents.c.path).where(upload_intents.c.path.in_(self._new_paths(change)))
        return (await connection.execute(claimed)).scalars().all()

    async def _end_compaction(self, connection: AsyncConnection, change: FileChange, now: int) -> None:
        """Marks the compaction done in the swap's transaction, so that a crash can't leave the journal wrong."""
        row = compactions.c
        await connection.execute(
            update(compactions)
            .where(
                row.operation_id == change.operation_id,
                row.table_id == change.table_id,
                row.status.in_(("running", "aborted")),
            )
            .values(
                status="done", reason=None, ended_at=now, updated_at=now,
                output_files=len(change.new),
                output_bytes=sum(draft.file_size for draft in change.new),
                row_count=sum(draft.row_count for draft in change.new),
            )
        )  # fmt: skip

    async def _complete_intents(self, connection: AsyncConnection, change: FileChange) -> None:
        """A concurrent claim of these intents waits for the rows deleted here, and then finds none."""
        ended = delete(upload_intents).where(upload_intents.c.path.in_(self._new_paths(change)))
        if change.intents_of is None:
            await connection.execute(ended)
            return
        own = ended.where(upload_intents.c.owner == change.intents_of).returning(upload_intents.c.path)
        held = {path for (path,) in await connection.execute(own)}
        lost = [draft.file_path for draft in change.new if draft.file_path not in held]
        if lost:
            raise lost_intents(change, lost)

    def _new_paths(self, change: FileChange) -> Select[tuple[str]]:
        given = self._bind_rows([table_files.c.file_path], [(draft.file_path,) for draft in change.new])
        return select(given.c.file_path)

    async def _lock_table(self, connection: AsyncConnection, table_id: int) -> None:
        query = select(tables.c.id).where(tables.c.id == table_id).with_for_update(key_share=True)
        if (await connection.execute(query)).first() is None:
            raise NotFound(f"table {table_id} does not exist")

    async def _remove_old_files(self, connection: AsyncConnection, change: FileChange, now: int) -> None:
        given = self._bind_rows([table_files.c.id], [(file.id,) for file in change.old])
        ids = select(given.c.id)
        query = select_rows(TableFile).where(table_files.c.id.in_(ids)).with_for_update()
        current = {file.id: file for file in (TableFile(*row) for row in await connection.execute(query))}
        changed = change.changed(current)
        if changed:
            raise files_changed(change.table_id, changed)
        await connection.execute(delete(table_files).where(table_files.c.id.in_(ids)))
        await self._insert_many(
            connection,
            files_awaiting_deletion,
            DELETION_COLUMNS,
            [deletion_row(file, change.reason, now) for file in change.old],
        )

    async def _update_statistics(self, connection: AsyncConnection, change: FileChange, now: int) -> None:
        """Adds the difference to the statistics of the partitions and of the table."""
        by_partition = differences(change)
        stats = table_stats.c
        given = self._bind_rows(
            [stats.partition_path, stats.row_count, stats.file_count, stats.total_size],
            [(path, *difference) for path, difference in by_partition.items()],
        )
        moved = await connection.execute(
            update(table_stats)
            .where(stats.table_id == change.table_id, stats.partition_path == given.c.partition_path)
            .values(
                row_count=stats.row_count + given.c.row_count,
                file_count=stats.file_count + given.c.file_count,
                total_size=stats.total_size + given.c.total_size,
                last_modified=now,
                updated_at=now,
            )
            .returning(stats.partition_path)
        )
        for (path,) in moved:
            del by_partition[path]
        await self._insert_many(
            connection,
            table_stats,
            ["table_id", "partition_path", "row_count", "file_count", "total_size",
             "last_modified", "created_at", "updated_at"],
            [(change.table_id, path, *difference, now, now, now) for path, difference in by_partition.items()],
        )  # fmt: skip
        rows, count, size = _total(change)
        await connection.execute(
            update(tables)
            .where(tables.c.id == change.table_id)
            .values(
                row_count=tables.c.row_count + rows,
                file_count=tables.c.file_count + count,
                total_size=tables.c.total_size + size,
                last_modified=now,
                updated_at=now,
            )
        )

    async def _explain_missing_version(self, change: FileChange) -> None:
        if await self.get_table_by_id(change.table_id) is None:
            raise NotFound(f"table {change.table_id} does not exist")
        known = {version.schema_version for version in await self.list_table_metadata(change.table_id)}
        for draft in change.new:
            if draft.schema_version not in known:
                raise NotFound(f"table {change.table_id} has no schema version {draft.schema_version}")

    async def get_files(self, table_id: int, paths: Sequence[str]) -> list[TableFile]:
        validation.integer("table_id", table_id)
        validation.every("path", paths, validation.non_empty_path)
        if not paths:
            return []
        given = self._bind_rows([table_files.c.file_path], [(path,) for path in paths])
        query = select_rows(TableFile).where(
            table_files.c.table_id == table_id, table_files.c.file_path.in_(select(given.c.file_path))
        )
        return await self._rows(TableFile, query.order_by(table_files.c.id))

    async def list_files(
        self, table_id: int, *, partition_path: str | None = None, after: int = 0, limit: int = PAGE
    ) -> list[TableFile]:
        validation.integer("table_id", table_id)
        validation.optional("partition_path", partition_path, validation.path)
        validation.integer("after", after)
        validation.integer("limit", limit, 1)
        query = select_rows(TableFile).where(table_files.c.table_id == table_id, table_files.c.id > after)
        if partition_path is not None:
            query = query.where(table_files.c.partition_path == partition_path)
        return await self._rows(TableFile, query.order_by(table_files.c.id).limit(limit))

    async def stream_files(self, table_id: int, *, partition_path: str | None = None) -> AsyncIterator[TableFile]:
        after = 0
        while page := await self.list_files(table_id, partition_path=partition_path, after=after):
            for file in page:
                yield file
            after = page[-1].id

    async def get_statistics(self, table_id: int) -> list[TableStats]:
        validation.integer("table_id", table_id)
        query = select_rows(TableStats).where(table_stats.c.table_id == table_id)
        return await self._rows(TableStats, query.order_by(table_stats.c.partition_path))

    async def count_file_sizes(self, table_id: int, bounds: Sequence[int]) -> list[FileSizes]:
        validation.integer("table_id", table_id)
        validation.every("bounds", bounds, validation.integer)
        if list(bounds) != sorted({0, *bounds}):
            raise Invalid("bounds", list(bounds), "must ascend from 0")
        files = table_files.c
        size_class = case(*((files.file_size >= bound, bound) for bound in reversed(bounds)), else_=0)
        compacted = case((files.operation == "compaction", 1), else_=0)
        counted = select(
            size_class.label("size_class"),
            compacted.label("compacted"),
            files.file_size,
        ).where(files.table_id == table_id).subquery("counted")  # fmt: skip
        found = counted.c
        query = (
            select(found.size_class, found.compacted, func.count(), cast(func.sum(found.file_size), BigInt))
            .group_by(found.size_class, found.compacted)
            .order_by(found.size_class, found.compacted)
        )
        async with self._autocommit() as connection:
            rows = (await connection.execute(query)).all()
        return [FileSizes(bound, bool(by_compaction), files, size) for bound, by_compaction, files, size in rows]

    async def recount_statistics(self, table_id: int) -> LakeTable:
        """Writes only rows that are wrong, so that recounting correct statistics causes no change events."""
        validation.integer("table_id", table_id)
        now = self._clock.now_ms()
        async with self._transaction() as connection:
            await self._lock_table(connection, table_id)
            await self._recount_partitions(connection, table_id, now)
            sums = [func.coalesce(cast(func.sum(table_stats.c[name]), BigInt), 0) for name in COUNTED]
            of_table = select(*sums).where(table_stats.c.table_id == table_id)
            right = dict(zip(COUNTED, (await connection.execute(of_table)).one(), strict=True))
            wrong = or_(*(tables.c[name] != value for name, value in right.items()))
            await connection.execute(
                update(tables).where(tables.c.id == table_id, wrong).values({**right, "updated_at": now})
            )
            row = (await connection.execute(select_rows(LakeTable).where(tables.c.id == table_id))).one()
            return LakeTable(*row)

    async def _recount_partitions(self, connection: AsyncConnection, table_id: int, now: int) -> None:
        files, stats = table_files.c, table_stats.c
        counted = (
            select(
                files.partition_path,
                cast(func.sum(files.row_count), BigInt).label("row_count"),
                func.count().label("file_count"),
                cast(func.sum(files.file_size), BigInt).label("total_size"),
            )
            .where(files.table_id == table_id)
            .group_by(files.partition_path)
            .subquery("counted")
        )
        known = table_stats.alias("known")
        right = (
            select(known.c.id, *(func.coalesce(counted.c[name], 0).label(name) for name in COUNTED))
            .select_from(known.outerjoin(counted, known.c.partition_path == counted.c.partition_path))
            .where(known.c.table_id == table_id)
            .subquery("right_now")
        )
        await connection.execute(
            update(table_stats)
            .where(stats.id == right.c.id, or_(*(stats[name] != right.c[name] for name in COUNTED)))
            .values({**{name: right.c[name] for name in COUNTED}, "last_modified": now, "updated_at": now})
        )
        unknown = ~exists().where(stats.table_id == table_id, stats.partition_path == counted.c.partition_path)
        rows = select(
            literal(table_id), counted.c.partition_path, *(counted.c[name] for name in COUNTED),
            literal(now), literal(now), literal(now),
        ).where(unknown)  # fmt: skip
        names = ["table_id", "partition_path", *COUNTED, "last_modified", "created_at", "updated_at"]
        await connection.execute(insert(table_stats).from_select(names, rows))


def unseen_deletes(table_id: int, paths: Sequence[str]) -> Conflict:
    return Conflict(f"table {table_id} got delete files for these data files meanwhile: {first_paths(paths)}", paths)


def claimed_files(table_id: int, paths: Sequence[str]) -> Conflict:
    return Conflict(
        f"files of table {table_id} can't be added, they may be deleted right now: {first_paths(paths)}", paths
    )


def lost_intents(change: FileChange, paths: Sequence[str]) -> Conflict:
    return Conflict(
        f"{change.intents_of} no longer owns the upload intents of {first_paths(paths)}: write the files again", paths
    )


def first_paths(paths: Sequence[str]) -> str:
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def merge_changes(changes: Sequence[FileChange]) -> list[FileChange]:
    """Merges additions of one kind to one table, sorted by table, so that every call locks tables in the same order.

    A change that advances a consumer group is not merged.
    """
    kinds: dict[tuple[int, str, str, str, int], list[FileChange]] = {}
    for index, change in enumerate(changes, 1):
        if change.new or change.advances:
            alone = index if change.advances else 0
            kind = (change.table_id, change.operation, change.operation_id or "", change.intents_of or "", alone)
            kinds.setdefault(kind, []).append(change)
    return [
        msgspec.structs.replace(
            alike[0],
            new=[draft for change in alike for draft in change.new],
            inserts=[each for change in alike for each in change.inserts],
            advances=sorted(alike[0].advances, key=lambda step: step.key),
        )
        for _, alike in sorted(kinds.items(), key=lambda item: item[0])
    ]


def file_change(part: Registration) -> FileChange:
    return FileChange(
        part.table_id,
        [],
        part.files,
        part.operation,
        part.operation_id,
        "added",
        part.intents_of,
        part.advances,
        inserts=_inserts(part),
    )


def _inserts(part: Registration) -> list[tuple[TableInsert, Sequence[str]]]:
    if part.insert_id is None:
        return []
    rows = sum(draft.row_count for draft in part.files)
    record = TableInsert(part.table_id, part.insert_id, rows, len(part.files))
    return [(record, [draft.file_path for draft in part.files])]


def require_listed(change: FileChange, listed: set[str]) -> None:
    """A file is removed from the list before it is deleted: one that is not listed may be gone already."""
    missing = [draft.file_path for draft in change.new if draft.file_path not in listed]
    if missing:
        raise Conflict(
            f"files of table {change.table_id} can't be restored, they no longer await deletion: "
            f"{first_paths(missing)}",
            missing,
        )


def files_changed(table_id: int, paths: Sequence[str]) -> Conflict:
    return Conflict(f"files of table {table_id} are gone or changed since they were read: {first_paths(paths)}", paths)


def differences(change: FileChange) -> dict[str, tuple[int, int, int]]:
    """Returns the change in rows, files and bytes, by partition path."""
    sums: dict[str, tuple[int, int, int]] = {}
    for sign, files in ((-1, change.old), (1, change.new)):
        for file in files:
            rows, count, size = sums.get(file.partition_path, (0, 0, 0))
            sums[file.partition_path] = (rows + sign * file.row_count, count + sign, size + sign * file.file_size)
    return sums


def _total(change: FileChange) -> tuple[int, int, int]:
    columns = list(zip(*differences(change).values(), strict=True))
    return sum(columns[0]), sum(columns[1]), sum(columns[2])


def _repeated(paths: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            return path
        seen.add(path)
    return None
