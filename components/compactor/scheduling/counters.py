"""Counts of live files by table, partition, size and age, kept by events.

Sizes are counted in tiers, four per doubling, so that small files can be found for any target size without keeping
files. Ages are counted in periods of the table's minimum age; older files are one sum. A file's own row determines
where it is counted, so its removal is subtracted from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from astha.events import Event, Operation
from components.compactor.scheduling.delete_counts import DeleteCounts
from registry.models import TableFile, TableStats

Key: TypeAlias = tuple[int, str]
"""Table id and partition path."""

COUNTED_TYPE = "parquet"
"""Files of other types are in the totals, but are not merged."""

PERIODS = 4
"""Per minimum age, so that a file may be taken for younger than it is by a quarter of that, never for older."""

AGED = -1


def tier_of(size_bytes: int) -> int:
    if size_bytes < 4:
        return 0
    doublings = size_bytes.bit_length() - 1
    return doublings * 4 + (size_bytes >> (doublings - 2) & 3)


class Cell(msgspec.Struct, gc=False):
    """Files of one tier. `own` counts those written by compactions; none is larger than `largest`."""

    files: int = 0
    size_bytes: int = 0
    own: int = 0
    largest: int = 0  # of all files ever counted here

    def add(self, other: Cell) -> None:
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.own += other.own
        self.largest = max(self.largest, other.largest)


Tiers: TypeAlias = dict[int, Cell]


class PartitionCounts(msgspec.Struct, gc=False):
    """`files`, `size_bytes` and `rows` count files of all types, like `table_stats`."""

    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    tiers: dict[int, Tiers] = msgspec.field(default_factory=dict)  # by period, or AGED
    aged_through: int = AGED  # periods up to this one are counted as AGED
    newest_ms: int = 0  # `created_at` of the newest file ever counted

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
        """Counts periods up to this one as old enough."""
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
        """Returns periods that are not old enough, oldest first."""
        return sorted(period for period in self.tiers if period != AGED)

    def all_tiers(self) -> Tiers:
        whole: Tiers = {}
        for tiers in self.tiers.values():
            for tier, cell in tiers.items():
                whole.setdefault(tier, Cell()).add(cell)
        return whole


class CountDifference(msgspec.Struct, frozen=True):
    """Counts that differ from the registry's statistics."""

    key: Key
    counted: tuple[int, int, int]  # files, bytes, rows
    recorded: tuple[int, int, int]

    def __str__(self) -> str:
        table, path = self.key
        return (
            f"partition {path!r} of table {table}: {self.counted} files, bytes and rows by events, "
            f"{self.recorded} by statistics"
        )


class Counters:
    def __init__(self, min_age_ms: int = 0) -> None:
        """``min_age_ms`` is for tables that are not tuned."""
        self._default_period_ms = _period_ms(min_age_ms)
        self._partitions: dict[int, dict[str, PartitionCounts]] = {}
        self._periods_ms: dict[int, int] = {}
        self._gone: set[int] = set()  # dropped tables whose files are still counted
        self.deletes = DeleteCounts()

    def __len__(self) -> int:
        return sum(map(len, self._partitions.values()))

    def __iter__(self) -> Iterator[Key]:
        return iter([(table, path) for table, partitions in self._partitions.items() for path in partitions])

    def of(self, key: Key) -> PartitionCounts | None:
        return self._partitions.get(key[0], {}).get(key[1])

    def paths(self, table_id: int) -> list[str]:
        return list(self._partitions.get(table_id, ()))

    def tune(self, table_id: int, min_age_ms: int, now_ms: int) -> bool:
        """Changes the minimum age of a table. Files counted so far are taken for old enough; the plan checks each of
        them.
        """
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
        """Returns the partitions that it has changed."""
        moved: set[Key] = set()
        if event.operation is Operation.UPDATE and event.before is not None:
            moved.add(self.count(event.before, -1))
        moved.add(self.count(event.data, -1 if event.operation is Operation.DELETE else 1))
        return moved

    def ripen(self, key: Key, now_ms: int) -> int | None:
        """Moves files that are old enough by now. Returns when the next ones will be, or None if there are none."""
        counts, period_ms = self.of(key), self._period_ms(key[0])
        if counts is None or not period_ms:
            return None
        # A period is old enough when its last file has the minimum age, which is PERIODS periods.
        counts.age(now_ms // period_ms - PERIODS - 1)
        young = counts.young()
        return (young[0] + PERIODS + 1) * period_ms if young else None

    def compare(self, stats: TableStats) -> CountDifference | None:
        """Compares the counts after a whole transaction with its row of `table_stats`."""
        key = (stats.table_id, stats.partition_path)
        counts = self.of(key)
        counted = (0, 0, 0) if counts is None else (counts.files, counts.size_bytes, counts.rows)
        recorded = (stats.file_count, stats.total_size, stats.row_count)
        return None if counted == recorded else CountDifference(key, counted, recorded)

    def _period_ms(self, table_id: int) -> int:
        return self._periods_ms.get(table_id, self._default_period_ms)

    def forget(self, table_id: int) -> None:
        """The table was dropped. Its files that are still counted are subtracted by their events."""
        self.deletes.forget(table_id)
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
