"""Live files by table, partition, size and age: moved by the events, never by reading.

Sizes are kept in tiers, four to a doubling, so that what is small can be asked for any target and no file need be
remembered. Ages are kept in periods of the table's minimum age; what is older than that is one sum. A file's own row
says where it was counted, so that its end takes it out of exactly there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from astha.events import Event, Operation
from registry.models import TableFile, TableStats

Key: TypeAlias = tuple[int, str]
"""Table id and partition path."""

COUNTED_TYPE = "parquet"
"""Files of other types are in the totals, but nothing merges them."""

PERIODS = 4
"""A minimum age is kept to a quarter of it: a file is taken for younger than it is, never for older."""

AGED = -1


def tier_of(size_bytes: int) -> int:
    if size_bytes < 4:
        return 0
    doublings = size_bytes.bit_length() - 1
    return doublings * 4 + (size_bytes >> (doublings - 2) & 3)


class Cell(msgspec.Struct, gc=False):
    """Files of one tier. `own` are those that a compaction has brought; none is above `largest`."""

    files: int = 0
    size_bytes: int = 0
    own: int = 0
    largest: int = 0  # ever counted here: it stays when the file goes

    def add(self, other: Cell) -> None:
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.own += other.own
        self.largest = max(self.largest, other.largest)


Tiers: TypeAlias = dict[int, Cell]


class PartitionCounts(msgspec.Struct, gc=False):
    """`files`, `size_bytes` and `rows` are of all types, as `table_stats` has them."""

    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    tiers: dict[int, Tiers] = msgspec.field(default_factory=dict)  # by period, or AGED
    aged_through: int = AGED  # periods up to this one are counted as AGED
    newest_ms: int = 0  # of all files that were ever counted

    def count(self, file: TableFile, sign: int, period_ms: int) -> None:
        self.files += sign
        self.size_bytes += sign * file.file_size
        self.rows += sign * file.row_count
        if file.file_type != COUNTED_TYPE:
            return
        self.newest_ms = max(self.newest_ms, file.created_at)
        period = file.created_at // period_ms if period_ms else AGED
        if period <= self.aged_through:
            period = AGED
        tiers = self.tiers.setdefault(period, {})
        tier = tier_of(file.file_size)
        cell = tiers.setdefault(tier, Cell())
        cell.files += sign
        cell.size_bytes += sign * file.file_size
        cell.own += sign * (file.operation == "compaction")
        cell.largest = max(cell.largest, file.file_size)
        if not cell.files:  # and so no bytes
            del tiers[tier]
            if not tiers:
                del self.tiers[period]

    def age(self, through: int) -> None:
        """Periods up to this one are over."""
        if through <= self.aged_through:
            return
        self.aged_through = through
        for period in [period for period in self.tiers if AGED < period <= through]:
            aged = self.tiers.setdefault(AGED, {})
            for tier, cell in self.tiers.pop(period).items():
                aged.setdefault(tier, Cell()).add(cell)

    def aged(self) -> Tiers:
        return self.tiers.get(AGED, {})

    def young(self) -> list[int]:
        """Periods that are not over, oldest first."""
        return sorted(period for period in self.tiers if period != AGED)

    def all_tiers(self) -> Tiers:
        whole: Tiers = {}
        for tiers in self.tiers.values():
            for tier, cell in tiers.items():
                whole.setdefault(tier, Cell()).add(cell)
        return whole


class Difference(msgspec.Struct, frozen=True):
    """What the registry's statistics say against what was counted."""

    key: Key
    counted: tuple[int, int, int]  # files, bytes, rows
    recorded: tuple[int, int, int]

    def __str__(self) -> str:
        table, path = self.key
        return (
            f"partition {path!r} of table {table}: {self.counted} files, bytes and rows by the events, "
            f"{self.recorded} by the statistics"
        )


class Counters:
    def __init__(self, min_age_ms: int = 0) -> None:
        """``min_age_ms``: of tables that are not tuned."""
        self._default_period_ms = _period_ms(min_age_ms)
        self._partitions: dict[int, dict[str, PartitionCounts]] = {}
        self._periods_ms: dict[int, int] = {}
        self._gone: set[int] = set()  # tables that were forgotten before their files

    def __len__(self) -> int:
        return sum(map(len, self._partitions.values()))

    def __iter__(self) -> Iterator[Key]:
        return iter([(table, path) for table, partitions in self._partitions.items() for path in partitions])

    def of(self, key: Key) -> PartitionCounts | None:
        return self._partitions.get(key[0], {}).get(key[1])

    def paths(self, table_id: int) -> list[str]:
        return list(self._partitions.get(table_id, ()))

    def tune(self, table_id: int, min_age_ms: int, now_ms: int) -> bool:
        """Count ages for another minimum. What was counted so far is taken for old enough: the plan looks closer."""
        period_ms = _period_ms(min_age_ms)
        if period_ms == self._period_ms(table_id):
            return False
        self._periods_ms[table_id] = period_ms
        for counts in self._partitions.get(table_id, {}).values():
            counts.age(max(counts.tiers, default=AGED))
            counts.aged_through = max(now_ms, counts.newest_ms) // period_ms if period_ms else AGED
        return True

    def count(self, file: TableFile, sign: int = 1) -> Key:
        partitions = self._partitions.setdefault(file.table_id, {})
        counts = partitions.get(file.partition_path)
        if counts is None:
            counts = partitions[file.partition_path] = PartitionCounts()
        counts.count(file, sign, self._period_ms(file.table_id))
        if not counts.files:
            self._forget(file.table_id, file.partition_path)
        return file.table_id, file.partition_path

    def apply(self, event: Event[TableFile]) -> set[Key]:
        """The partitions that it has moved."""
        moved: set[Key] = set()
        if event.operation is Operation.UPDATE and event.before is not None:
            moved.add(self.count(event.before, -1))
        moved.add(self.count(event.data, -1 if event.operation is Operation.DELETE else 1))
        return moved

    def ripen(self, key: Key, now_ms: int) -> int | None:
        """Let time pass for a partition; when its next files will be old enough, if it has young ones."""
        counts, period_ms = self.of(key), self._period_ms(key[0])
        if counts is None or not period_ms:
            return None
        # A period is over when its last file has the minimum age, which is PERIODS periods.
        counts.age(now_ms // period_ms - PERIODS - 1)
        young = counts.young()
        return (young[0] + PERIODS + 1) * period_ms if young else None

    def compare(self, stats: TableStats) -> Difference | None:
        """After a whole transaction, with its row of `table_stats`."""
        key = (stats.table_id, stats.partition_path)
        counts = self.of(key)
        counted = (0, 0, 0) if counts is None else (counts.files, counts.size_bytes, counts.rows)
        recorded = (stats.file_count, stats.total_size, stats.row_count)
        return None if counted == recorded else Difference(key, counted, recorded)

    def _period_ms(self, table_id: int) -> int:
        return self._periods_ms.get(table_id, self._default_period_ms)

    def forget(self, table_id: int) -> None:
        """The table is gone. Files of it that are still counted go with their events, and are counted as they were."""
        if table_id in self._partitions:
            self._gone.add(table_id)
        else:
            self._periods_ms.pop(table_id, None)

    def _forget(self, table_id: int, path: str) -> None:
        del self._partitions[table_id][path]
        if not self._partitions[table_id]:
            del self._partitions[table_id]
            if table_id in self._gone:
                self._gone.remove(table_id)
                self._periods_ms.pop(table_id, None)


def _period_ms(min_age_ms: int) -> int:
    return -(-min_age_ms // PERIODS)
