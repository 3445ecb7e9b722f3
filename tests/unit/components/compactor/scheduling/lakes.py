"""A small lake in memory: live files and statistics, the events of its changes, and consistent reads of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TypeVar

import msgspec

from astha.events import Commit, Event, Operation
from registry.json_text import EMPTY_LIST, EMPTY_OBJECT, to_json_text
from registry.models import FileOperation, LakeTable, Row, TableDeleteFile, TableFile, TableMetadata, TableStats
from registry.position import Position, SequenceVisibility, SnapshotVisibility
from tests.doubles.clock import ManualClock

R = TypeVar("R", bound=Row)
MIB = 1 << 20


class Lake:
    def __init__(self, clock: ManualClock | None = None, **properties: str | int) -> None:
        self.clock = clock or ManualClock()
        self.files: dict[int, TableFile] = {}
        self.stats: dict[tuple[int, str], TableStats] = {}
        self.deletes: dict[int, TableDeleteFile] = {}
        self.tables: dict[int, tuple[LakeTable, TableMetadata]] = {}
        self.position = 0
        self._id = 0
        self.create(1, **properties)

    def create(self, table_id: int, **properties: str | int) -> None:
        named = {f"compaction.{name.replace('_', '-')}": value for name, value in properties.items()}
        self.tables[table_id] = (
            LakeTable(table_id, "db", f"t{table_id}", f"s3://lake/t{table_id}", 0, 0, 0, 0, "active", 0, 0),
            TableMetadata(
                table_id, table_id, 1, EMPTY_OBJECT, "parquet", EMPTY_OBJECT, "parquet", "zstd", EMPTY_LIST,
                EMPTY_LIST, to_json_text(named), 0, 0, 0,
            ),
        )  # fmt: skip

    def new(
        self,
        size: int = MIB,
        partition: str = "",
        *,
        table_id: int = 1,
        operation: FileOperation = "insert",
        operation_id: str | None = None,
        file_type: str = "parquet",
        created_at: int | None = None,
    ) -> TableFile:
        """Returns a row that is not in the lake yet."""
        self._id += 1
        at = self.clock.now_ms() if created_at is None else created_at
        return TableFile(
            self._id, table_id, f"{self._id}", f"s3://lake/t{table_id}/{self._id}", size, file_type, partition,
            size // 100, None, True, 1, None, operation, operation_id, at, at,
        )  # fmt: skip

    def change(self, old: Iterable[TableFile] = (), new: Iterable[TableFile] = ()) -> list[Event[Row]]:
        """Returns one transaction that replaces `old` rows by `new` ones; a row with the same id is an UPDATE."""
        self.position += 1
        commit = Commit(self.position, Position(self.position), 0)
        old, new = list(old), list(new)
        replaced = {file.id for file in new} & {file.id for file in old}
        events: list[Event[Row]] = []
        for file in old:
            gone = self.files.pop(file.id)
            self._count(gone, -1)
            if file.id not in replaced:
                events.append(Event(Operation.DELETE, gone, gone, commit, len(events)))
        before = {file.id: file for file in old}
        for file in new:
            self.files[file.id] = file
            self._count(file, 1)
            operation = Operation.UPDATE if file.id in replaced else Operation.INSERT
            events.append(Event(operation, file, before.get(file.id), commit, len(events)))
        touched = {(file.table_id, file.partition_path) for file in (*old, *new)}
        for key in sorted(touched):
            events.append(Event(Operation.UPDATE, self.stats[key], self.stats[key], commit, len(events)))
        commit.count = len(events)
        return events

    def delete_rows(self, *added: TableDeleteFile, removed: Iterable[TableDeleteFile] = ()) -> list[Event[Row]]:
        """Returns one transaction of another engine, or of a swap, that changes only delete files."""
        self.position += 1
        commit = Commit(self.position, Position(self.position), 0)
        self.deletes |= {file.id: file for file in added}
        events: list[Event[Row]] = [Event(Operation.INSERT, file, None, commit, at) for at, file in enumerate(added)]
        for file in removed:
            del self.deletes[file.id]
            events.append(Event(Operation.DELETE, file, file, commit, len(events)))
        commit.count = len(events)
        return events

    def insert(self, *sizes: int, partition: str = "", table_id: int = 1) -> list[Event[Row]]:
        return self.change(new=[self.new(size, partition, table_id=table_id) for size in sizes])

    def swap(self, old: Iterable[TableFile], sizes: Iterable[int], operation_id: str = "op") -> list[Event[Row]]:
        gone = list(old)
        partition, table_id = gone[0].partition_path, gone[0].table_id
        new = [
            self.new(size, partition, table_id=table_id, operation="compaction", operation_id=operation_id)
            for size in sizes
        ]
        return self.change(gone, new)

    def of(self, partition: str = "", table_id: int = 1) -> list[TableFile]:
        return [row for row in self.files.values() if (row.table_id, row.partition_path) == (table_id, partition)]

    def _count(self, file: TableFile, sign: int) -> None:
        key = (file.table_id, file.partition_path)
        was = self.stats.get(key) or TableStats(len(self.stats) + 1, *key, 0, 0, 0, 0, 0, 0)
        self.stats[key] = msgspec.structs.replace(
            was,
            row_count=was.row_count + sign * file.row_count,
            file_count=was.file_count + sign,
            total_size=was.total_size + sign * file.file_size,
        )


class Snapshot:
    """A consistent read of the lake at its creation."""

    def __init__(self, lake: Lake) -> None:
        self._rows: Mapping[type[Row], list[Row]] = {
            LakeTable: [table for table, _ in lake.tables.values()],
            TableMetadata: [metadata for _, metadata in lake.tables.values()],
            TableFile: list(lake.files.values()),
            TableStats: list(lake.stats.values()),
            TableDeleteFile: list(lake.deletes.values()),
        }
        self._last = lake.position

    @property
    def visibility(self) -> SnapshotVisibility:
        return SequenceVisibility(Position(self._last))

    async def count(self, kind: type[Row]) -> int:
        return len(self._rows[kind])

    async def rows(self, kind: type[R], *, page: int = 3, table_id: int | None = None) -> AsyncIterator[list[R]]:
        found = [row for row in self._rows[kind] if isinstance(row, kind)]
        for start in range(0, len(found), page):
            yield found[start : start + page]
