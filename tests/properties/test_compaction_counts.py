"""The compactor's counts under any history: equal to a recount of the registry's rows after every step.

Inserts, deletes, updates, swaps, other settings, time, redelivery, refreshes and restarts, in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astha.events import Event
from components.compactor.planning.file_selection import FileSelection, make_plan
from components.compactor.scheduling.budget import BudgetLimits
from components.compactor.scheduling.counters import COUNTED_TYPE, PERIODS, Counters, tier_of
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.scheduler import Scheduler
from components.compactor.scheduling.scoring import judge
from registry.models import Row, TableFile
from tests.doubles.clock import ManualClock
from tests.unit.components.compactor.scheduling.lakes import MIB, Lake, Snapshot

Step: TypeAlias = tuple[str, int, int]
Cells: TypeAlias = dict[int, tuple[int, int, int]]

STEPS = (
    "insert", "insert", "insert", "insert", "delete", "update", "swap", "json", "ahead",
    "again", "wait", "retune", "refresh", "restart", "take",
)  # fmt: skip
AGES = ("0s", "4s", "1m")
PATHS = ("", "a", "b")

steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 8), st.integers(0, 40 * MIB)),
    min_size=10,  # short histories rarely fail
    max_size=60,
)


class History:
    def __init__(self, age: int) -> None:
        self.clock = ManualClock(1_000_000)
        self.lake = Lake(self.clock, min_age=AGES[age], min_inputs=3, target_size="16MiB")
        self.scheduler = self._new()
        self.retuned = False
        self.last: Sequence[Event[Row]] = self.lake.insert(1)  # may be delivered again, until a refresh contains it

    def _new(self) -> Scheduler:
        return Scheduler(CompactionPolicy(), BudgetLimits(concurrent_jobs=3), self.clock)

    async def load(self) -> None:
        self.last = ()
        await self.scheduler.load(Snapshot(self.lake))

    async def do(self, what: str, number: int, size: int) -> None:
        match what:
            case "again" if self.last:
                self.scheduler.apply(self.last)
            case "again":
                pass
            case "wait":
                self.clock.advance(number * 2_000)
            case "retune":
                self.lake.create(1, min_age=AGES[number % 3], min_inputs=3, target_size="16MiB")
                self.scheduler.introduce(*self.lake.tables[1])
                self.retuned = True
            case "refresh":
                self.retuned = False
                await self.load()
            case "restart":
                self.scheduler, self.retuned = self._new(), False
                await self.load()
            case "take":
                if (candidate := self.scheduler.take()) is not None and number % 2:
                    self.scheduler.finish(candidate, "aborted")
            case _:
                self.change(what, number, size)

    def change(self, what: str, number: int, size: int) -> None:
        lake, path = self.lake, PATHS[number % 3]
        live = lake.of(path)
        match what:
            case "insert":
                self.apply(new=[lake.new(size >> part, path) for part in range(number + 1)])
            case "json":
                self.apply(new=[lake.new(size, path, file_type="json")])
            case "ahead":
                self.apply(new=[lake.new(size, path, created_at=self.clock.now_ms() + number * 20_000)])
            case "delete":
                self.apply(old=live[:number])
            case "update" if live:
                moved = msgspec.structs.replace(live[0], file_size=size, partition_path=PATHS[size % 3])
                self.apply(live[:1], [moved])
            case "swap" if len(live) > 1:
                self.last = lake.swap(live[: number + 2], [size], f"op-{lake.position}")
                self.scheduler.apply(self.last)

    def apply(self, old: list[TableFile] | None = None, new: list[TableFile] | None = None) -> None:
        if old or new:
            self.last = self.lake.change(old or (), new or ())
            self.scheduler.apply(self.last)

    def check(self) -> None:
        counters = self.scheduler.counters
        assert set(counters) == {(file.table_id, file.partition_path) for file in self.lake.files.values()}
        for key in counters:
            counts = counters.of(key)
            assert counts is not None
            rows = self.lake.of(key[1])
            assert (counts.files, counts.size_bytes, counts.rows) == (
                len(rows), sum(row.file_size for row in rows), sum(row.row_count for row in rows),
            )  # fmt: skip
            whole = counts.all_tiers()
            assert {tier: (c.files, c.size_bytes, c.own) for tier, c in whole.items()} == recounted(rows)
            for row in rows:
                assert row.file_type != COUNTED_TYPE or row.file_size <= whole[tier_of(row.file_size)].largest
            if not self.retuned:
                assert sum(cell.files for cell in counts.aged().values()) == self._aged(rows, counts.aged_through)

    def _aged(self, rows: list[TableFile], through: int) -> int:
        period_ms = -(-self.scheduler.tables.of(1).policy.min_age_ms // PERIODS)
        counted = [row for row in rows if row.file_type == COUNTED_TYPE]
        return sum(not period_ms or row.created_at // period_ms <= through for row in counted)


def recounted(rows: list[TableFile]) -> Cells:
    cells: Cells = {}
    for row in rows:
        if row.file_type == COUNTED_TYPE:
            files, size, own = cells.get(tier_of(row.file_size), (0, 0, 0))
            cells[tier_of(row.file_size)] = (files + 1, size + row.file_size, own + (row.operation == "compaction"))
    return cells


@settings(deadline=None)
@given(st.integers(0, 2), steps)
@example(1, [("ahead", 8, 5), ("retune", 2, 0), ("delete", 8, 0)])
@example(1, [("insert", 0, 5), ("wait", 8, 0), ("take", 0, 0), ("ahead", 0, 5), ("delete", 8, 0)])
def test_counts_equal_a_recount(age: int, drawn: list[Step]) -> None:
    async def run() -> None:
        history = History(age)
        await history.load()
        for step in drawn:
            await history.do(*step)
            history.check()

    asyncio.run(run())


sizes = st.lists(st.tuples(st.integers(0, 20 * MIB) | st.integers(0, MIB), st.booleans()), max_size=40)


@settings(deadline=None)
@given(sizes, st.integers(2, 8))
@example([(0, False), (1, False), (1, False), (1, False), (0, False)], 5)  # ends with an empty file
def test_a_decision_can_be_planned(drawn: list[tuple[int, bool]], min_inputs: int) -> None:
    """Otherwise jobs would begin repeatedly without effect."""
    lake, counters = Lake(), Counters()
    policy = CompactionPolicy(target_bytes=16 * MIB, max_group_bytes=64 * MIB, min_inputs=min_inputs)
    selection = FileSelection(policy, lake.clock.now_ms())
    for size, own in drawn:
        file = lake.new(size, operation="compaction" if own else "insert", operation_id="op" if own else None)
        counters.count(file)
        selection.add(file)
    counts = counters.of((1, ""))
    verdict = None if counts is None else judge(counts, policy, lake.clock.now_ms())
    found = make_plan(selection, policy, order_columns=0)
    if verdict is not None and verdict.status == "waiting":
        assert found.groups, (verdict, found)
        assert sum(len(group.files) for group in found.groups) >= min_inputs
