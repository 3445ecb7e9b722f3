from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
from sqlalchemy import (
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningDelete

from registry.errors import NotFound
from registry.inputs import FileDraft, SegmentDraft
from registry.json_text import to_json_text
from registry.models import (
    LOCAL_BUCKET,
    PUBLISHED,
    UNPUBLISHED,
    DaemonLease,
    DatabaseTime,
    FileAwaitingDeletion,
    LedgerEntry,
    TableFile,
    object_uri,
)
from registry.position import Position, XidVisibility
from registry.stores.postgres.arrays import array_literal
from registry.stores.postgres.consistent_read import PostgresConsistentRead
from registry.stores.postgres.rows import PostgresRows
from registry.stores.postgres.statements import (
    ADD_SEGMENTS,
    CHANGE_FILES,
    CHANGE_FILES_AND_OFFSETS,
    CLAIMED_PATHS,
    DELETE_SEGMENTS,
    RECORD_INTENTS,
    WRITE_LEDGER,
    PositionalStatement,
)
from registry.stores.sql.consistent_read import SqlConsistentRead
from registry.stores.sql.consumer_groups import offsets_moved
from registry.stores.sql.files import FileChange, differences, files_changed, lost_intents
from registry.stores.sql.producers import out_of_sequence
from registry.stores.sql.segment_objects import PURPOSE, count_by_object, lost_objects
from registry.stores.sql.segments import SegmentAddition, fenced
from registry.stores.sql.topics import partition_name
from registry.stores.sql.verbs import SqlVerbs

_OLD_FIELDS = {
    "old_id": "id",
    "old_name": "file_name",
    "old_path": "file_path",
    "old_size": "file_size",
    "old_type": "file_type",
    "old_partition": "partition_path",
    "old_rows": "row_count",
    "old_checksum": "checksum",
    "old_compressed": "is_compressed",
    "old_version": "schema_version",
    "old_stats": "column_stats",
    "old_operation": "operation",
    "old_operation_id": "operation_id",
    "old_created": "created_at",
    "old_modified": "modified_at",
}
_NEW_FIELDS = ("file_name", *(name for name in FileDraft.__struct_fields__))

_PRODUCER_FIELDS = {
    "producer_topic": "topic",
    "producer_partition_id": "partition_id",
    "producer_id": "producer_id",
    "producer_epoch": "epoch",
    "producer_first": "first_sequence",
    "producer_last": "last_sequence",
    "producer_base": "base_offset",
    "producer_count": "record_count",
}

_ADVANCE_FIELDS = {
    "group_id": "group_id",
    "topic": "topic",
    "partition_id": "partition_id",
    "expected_offset": "expected",
    "next_offset": "committed_offset",
    "offset_metadata": "metadata",
}

_LOCATIONS_LOCK = 0x6173746C  # "astl": an advisory lock of those who give a table a location
_FEW_FILES = 32
"""Up to this many files, planning the statement again (about 2 ms) costs more than it saves."""


class PostgresStore(PostgresRows, SqlVerbs):
    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._autocommit() as connection:
            await connection.exec_driver_sql("BEGIN")
            yield connection
            await connection.exec_driver_sql("COMMIT")

    def _single_statement(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return self._autocommit()

    async def _register_segments(self, addition: SegmentAddition) -> None:
        drafts, ranges = addition.drafts, dict(sorted(addition.ranges.items()))
        fences = sorted(addition.fences, key=lambda fence: (fence.topic, fence.partition_id))
        producers = sorted(addition.producers, key=lambda draft: (draft.topic, draft.partition_id, draft.producer_id))
        objects = dict(sorted(count_by_object(drafts).items()))
        columns = zip(*map(msgspec.structs.astuple, drafts), strict=True)
        values: dict[str, object] = {
            name: array_literal(items) for name, items in zip(SegmentDraft.__struct_fields__, columns, strict=True)
        }
        values |= {
            "range_topic": array_literal([topic for topic, _ in ranges]),
            "range_partition_id": array_literal([number for _, number in ranges]),
            "range_first": array_literal([offsets.first for offsets in ranges.values()]),
            "range_next": array_literal([offsets.last + 1 for offsets in ranges.values()]),
            "fence_topic": array_literal([fence.topic for fence in fences]),
            "fence_partition_id": array_literal([fence.partition_id for fence in fences]),
            "fence_agent": array_literal([fence.agent_id for fence in fences]),
            "fence_epoch": array_literal([fence.epoch for fence in fences]),
            "object_bucket": array_literal([bucket for bucket, _ in objects]),
            "object_key": array_literal([key for _, key in objects]),
            "object_path": array_literal([object_uri(*key) for key in objects]),
            "object_segments": array_literal([count for count, _ in objects.values()]),
            "object_size": array_literal([size for _, size in objects.values()]),
            "intents_of": addition.intents_of,
            "now": self._clock.now_ms(),
            "all": None,
        }
        values |= {
            name: array_literal([getattr(producer, field) for producer in producers])
            for name, field in _PRODUCER_FIELDS.items()
        }
        async with self._single_statement() as connection:
            refused = await _execute(connection, ADD_SEGMENTS, values)
        if refused:
            reasons: dict[str, list[tuple[str, int]]] = {}
            for name, number, why in refused:
                reasons.setdefault(why, []).append((name, number))
            await self._refuse(addition, reasons)

    async def _refuse(self, addition: SegmentAddition, reasons: dict[str, list[tuple[str, int]]]) -> None:
        if missing := reasons.get("missing"):
            raise NotFound(f"{partition_name(*missing[0])} does not exist")
        if keys := reasons.get("fenced"):
            raise fenced(*keys)
        if "late" in reasons:
            await super()._register_segments(addition)
            return
        if names := reasons.get("out of sequence"):
            split = [(name.partition("/"), number) for name, number in names]  # names contain no slash
            raise out_of_sequence([(topic, number, producer) for (topic, _, producer), number in split])
        raise lost_objects(addition.intents_of or "", [path for path, _ in reasons["lost"]])

    async def _record_intents(self, paths: Sequence[str], purpose: str, owner: str) -> None:
        values = {"path": array_literal(paths), "purpose": purpose, "owner": owner, "now": self._clock.now_ms()}
        async with self._single_statement() as connection:
            await _execute(connection, RECORD_INTENTS, values)

    async def _delete_segments(self, topic: str, partition_id: int, offset: int, limit: int | None) -> int:
        """In one statement."""
        values = {
            "topic": topic, "partition_id": partition_id, "offset": offset, "most": limit,
            "local": LOCAL_BUCKET, "purpose": PURPOSE, "now": self._clock.now_ms(),
        }  # fmt: skip
        async with self._single_statement() as connection:
            return int((await connection.execute(DELETE_SEGMENTS, values)).scalar_one())

    async def _change_files(self, change: FileChange) -> list[TableFile]:
        async with self._single_statement() as connection:
            added = await self._change_in_one_statement(connection, change)
        return await super()._change_files(change) if added is None else added

    async def _apply(self, connection: AsyncConnection, change: FileChange) -> list[TableFile]:
        added = await self._change_in_one_statement(connection, change)
        if added is None:
            return await super()._apply(connection, change)
        if change.operation == "external" and change.new:
            await self._require_unclaimed(connection, change)
        return added

    async def _claimed(self, connection: AsyncConnection, change: FileChange) -> Sequence[str]:
        paths = array_literal([draft.file_path for draft in change.new])
        return (await connection.execute(CLAIMED_PATHS, {"paths": paths})).scalars().all()

    async def _change_in_one_statement(self, connection: AsyncConnection, change: FileChange) -> list[TableFile] | None:
        """Applies the change in one statement. Returns None, and writes nothing, if another writer changed these files.

        A rollback needs several statements: it must check which files it removed from `files_awaiting_deletion`. So
        does an insert with an id, which is looked up first.
        """
        if change.operation == "rollback" or change.inserts:
            return None
        values: dict[str, object] = {
            name: array_literal([getattr(file, field) for file in change.old]) for name, field in _OLD_FIELDS.items()
        }
        values |= {name: array_literal([getattr(draft, name) for draft in change.new]) for name in _NEW_FIELDS}
        by_partition = differences(change)
        values |= {
            "old_json": array_literal([to_json_text(file) for file in change.old]),
            "stat_partition": array_literal(list(by_partition)),
            "stat_rows": array_literal([rows for rows, _, _ in by_partition.values()]),
            "stat_files": array_literal([count for _, count, _ in by_partition.values()]),
            "stat_size": array_literal([size for _, _, size in by_partition.values()]),
            "table_id": change.table_id,
            "operation": change.operation,
            "operation_id": change.operation_id,
            "reason": change.reason,
            "intents_of": change.intents_of,
            "now": self._clock.now_ms(),
        }
        statement = CHANGE_FILES
        if change.advances:
            statement = CHANGE_FILES_AND_OFFSETS
            values |= {
                name: array_literal([getattr(step, field) for step in change.advances])
                for name, field in _ADVANCE_FIELDS.items()
            }
        many = len(change.old) + len(change.new) > _FEW_FILES
        async with _unprepared(connection) if many else nullcontext():
            rows = (await connection.execute(statement, values)).all()
        held, refused, raced, lost, moved, found = rows[0][:6]
        if not held:
            raise NotFound(f"table {change.table_id} does not exist")
        if refused:
            raise files_changed(change.table_id, refused)
        if moved:
            steps = [change.advances[index - 1] for index in moved]
            known = zip((step.key for step in steps), found, strict=True)
            raise offsets_moved(steps, {key: offset for key, offset in known if offset is not None})
        if lost:
            raise lost_intents(change, lost)
        if raced:
            return None
        return [TableFile(*row[6:]) for row in rows if row[6] is not None]

    async def _lock_locations(self, connection: AsyncConnection) -> None:
        """Until the end of the transaction. A lock of the table would stop every change of statistics."""
        await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCATIONS_LOCK})")

    async def reserve_table_id(self) -> int:
        """Inserts a table and rolls back: a sequence keeps what it has given, and this needs no privilege for it."""
        async with self._autocommit() as connection:
            await connection.exec_driver_sql("BEGIN")
            reserved = await self._insert_table(connection, "reserved", uuid4().hex, "reserved", self._clock.now_ms())
            await connection.exec_driver_sql("ROLLBACK")
            return reserved.id

    async def _claim(self, taken: ReturningDelete[Any], purpose: str, owner: str) -> list[FileAwaitingDeletion]:
        """In one statement."""
        gone = taken.cte("gone")
        paths = select(gone.c.file_path).distinct()
        recorded = self._upsert_intents(paths, purpose, owner).returning(literal(1)).cte("recorded")
        async with self._single_statement() as connection:
            return [FileAwaitingDeletion(*row) for row in await connection.execute(select(gone).add_cte(recorded))]

    async def _write_entries(self, entries: Sequence[LedgerEntry], lease: DaemonLease) -> bool:
        """In one statement."""
        values: dict[str, object] = {
            name: array_literal([getattr(entry, name) for entry in entries]) for name in LedgerEntry.__struct_fields__
        }
        values |= {"name": lease.name, "holder": lease.holder, "epoch": lease.epoch}
        async with self._single_statement() as connection:
            return bool((await connection.execute(WRITE_LEDGER, values)).scalar_one())

    async def time(self) -> DatabaseTime:
        async with self._autocommit() as connection:
            now = await connection.exec_driver_sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
            return DatabaseTime(now.scalar_one())

    async def position(self) -> Position:
        async with self._autocommit() as connection:
            lsn = await connection.exec_driver_sql("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
            return Position(lsn.scalar_one())

    @asynccontextmanager
    async def consistent_read(self, tables: Iterable[str] = ()) -> AsyncIterator[SqlConsistentRead]:
        async with self._autocommit() as connection:
            await connection.exec_driver_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if locked := ", ".join(sorted(tables)):
                # Before the snapshot, which the first query takes: TRUNCATE is not MVCC-safe, says PostgreSQL's manual.
                await connection.exec_driver_sql(f"LOCK TABLE {locked} IN ACCESS SHARE MODE")
            # A standby's snapshot lists no running transactions: it would seem to contain everything.
            query = "SELECT pg_current_snapshot()::text WHERE NOT pg_is_in_recovery()"
            found = (await connection.exec_driver_sql(query)).scalar_one_or_none()
            visibility = None if found is None else XidVisibility.parse(found)
            read = PostgresConsistentRead(self, connection, visibility, await _driver(connection))
            try:
                yield read
            finally:
                await read.close()

    async def _before_load(self, connection: AsyncConnection) -> None:
        tables = ", ".join(kind.table for kind in (*PUBLISHED, *UNPUBLISHED))
        await connection.exec_driver_sql(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")

    async def _after_load(self, connection: AsyncConnection) -> None:
        for kind in (*PUBLISHED, *UNPUBLISHED):
            if kind.key == ("id",):
                await connection.exec_driver_sql(
                    f"SELECT setval(pg_get_serial_sequence('{kind.table}', 'id'), max(id)) FROM {kind.table}"
                )


@asynccontextmanager
async def _unprepared(connection: AsyncConnection) -> AsyncIterator[None]:
    """Statements in the block are planned for their own parameters and for the tables as they are now.

    A prepared statement keeps its plan, which may have been made for an empty table and is slow for a thousand rows.
    """
    driver = await _driver(connection)
    threshold, driver.prepare_threshold = driver.prepare_threshold, None
    try:
        yield
    finally:
        driver.prepare_threshold = threshold


async def _execute(
    connection: AsyncConnection, statement: PositionalStatement, values: Mapping[str, object]
) -> Sequence[Any]:
    driver = await _driver(connection)
    factory, driver.cursor_factory = driver.cursor_factory, psycopg.AsyncRawCursor
    try:
        result = await connection.exec_driver_sql(statement.text, statement.parameters(values))
        return result.all() if result.returns_rows else []
    finally:
        driver.cursor_factory = factory


async def _driver(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)  # noqa: S101  (the engine's driver)
    return driver
