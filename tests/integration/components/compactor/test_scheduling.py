"""The scheduler over real registries: counts by their changes, and its journal after a restart."""

from __future__ import annotations

import random
from typing import Any

import pytest

from astha.clock import SystemLoopClock
from astha.errors import Reject
from components.compactor.scheduling.budget import BudgetLimits
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.scheduler import Scheduler
from components.compactor.scheduling.scoring import MANY
from registry.contract import MetadataStore
from registry.inputs import CompactionOutcome
from registry.models import TableFile, TableStats
from registry.position import SnapshotVisibility
from tests.contracts.contents import contents
from tests.doubles.clock import ManualClock
from tests.fixtures.sources import Raw, SourceOf, SourceReader
from tests.samples import TABLE, decision, file

TABLES = frozenset((TableFile.table, TableStats.table))
MIB = 1 << 20


def scheduler(**limits: Any) -> Scheduler:
    return Scheduler(CompactionPolicy(), BudgetLimits(**limits), SystemLoopClock())


async def load(made: Scheduler, store: MetadataStore) -> SnapshotVisibility:
    """Returns which transactions are counted."""
    async with store.consistent_read() as snapshot:
        await made.load(snapshot)
        return snapshot.visibility


async def require_counted(made: Scheduler, store: MetadataStore) -> None:
    rows = [row for row in (await contents(store))["table_files"] if isinstance(row, TableFile)]
    counted: dict[tuple[int, str], tuple[int, int, int]] = {}
    for row in rows:
        files, size, count = counted.get((row.table_id, row.partition_path), (0, 0, 0))
        counted[row.table_id, row.partition_path] = (files + 1, size + row.file_size, count + row.row_count)
    found = {key: made.counters.of(key) for key in made.counters}
    assert {key: (c.files, c.size_bytes, c.rows) for key, c in found.items() if c is not None} == counted


class Writer:
    """Changes tables at random, as other writers do."""

    def __init__(self, store: MetadataStore, seed: int) -> None:
        self._store = store
        self._random = random.Random(seed)
        self._tables: list[int] = []
        self._number = 0

    async def step(self) -> None:
        chance, store = self._random.random(), self._store
        if not self._tables or chance < 0.03:
            self._number += 1
            table = await store.create_table("db", f"t{self._number}", f"s3://lake/t{self._number}", TABLE)
            self._tables.append(table.id)
            return
        table_id = self._random.choice(self._tables)
        live = await store.list_files(table_id)
        some = self._random.sample(live, min(len(live), self._random.randint(1, 6)))
        if chance < 0.06:
            self._tables.remove(table_id)
            await store.drop_table(table_id)
        elif chance < 0.2:
            await store.remove_files(table_id, some, reason="test")
        elif chance < 0.4 and some:
            await store.swap_files(table_id, some, [self._draft(some[0].partition_path)], operation_id="swap")
        else:
            await store.add_files(table_id, [self._draft() for _ in range(self._random.randint(1, 5))])

    def _draft(self, partition: str | None = None) -> Any:
        self._number += 1
        where = self._random.choice("abc") if partition is None else partition
        return file(f"s3://lake/{self._number}", size=self._random.randint(0, 30 * MIB), partition=where)


async def test_counts_follow_the_stream(writer: MetadataStore, source_of: SourceOf, registry_url: str) -> None:
    """From a snapshot in the middle: the daemon delivers the transactions that it does not contain."""
    steps = Writer(writer, 7)
    made = scheduler()
    counted: SnapshotVisibility | None = None
    async with SourceReader(await source_of(registry_url), TABLES) as reader:
        for number in range(90):
            if number == 30:
                counted = await load(made, writer)
            await steps.step()
        await reader.reach(await writer.position())
        assert counted is not None
        for transaction in reader.transactions:
            if not counted.contains(transaction.commit.transaction, transaction.position):
                made.apply(transaction.events)
                assert made.apply(transaction.events) == [], "delivered again after a failed attempt"
        await require_counted(made, writer)
        assert len(made.counters) > 0


async def test_changes_without_events_are_noticed(
    writer: MetadataStore, source_of: SourceOf, registry_url: str, raw: Raw
) -> None:
    table = await writer.create_table("db", "t", "s3://lake/t", TABLE)
    await writer.add_files(table.id, [file("s3://lake/1")])
    await raw("UPDATE table_stats SET file_count = 9")
    made = scheduler()
    await load(made, writer)
    before = await writer.position()
    async with SourceReader(await source_of(registry_url, before), TABLES) as reader:
        await writer.add_files(table.id, [file("s3://lake/2")])
        await reader.until(lambda: bool(reader.transactions), "the second file")
        made.apply(reader.transactions[-1].events)  # wrong as before: the registry's own trouble
        await writer.recount_statistics(table.id)
        await reader.until(lambda: len(reader.transactions) > 1, "the recount")
        with pytest.raises(Reject, match="partition '' of table"):
            made.apply(reader.transactions[-1].events)
    await load(made, writer)
    await require_counted(made, writer)


async def test_the_journal_outlives_a_restart(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    for path in "ab":
        await store.add_files(table.id, [file(f"s3://lake/{path}{n}", size=MIB, partition=path) for n in range(5)])
    first = Scheduler(CompactionPolicy(), BudgetLimits(), clock)
    await first.restore(store)
    await load(first, store)
    decisions = first.unrecorded()
    assert {(one.key[1], one.verdict.rule, one.trigger) for one in decisions} == {
        ("a", MANY, "refresh"), ("b", MANY, "refresh"),
    }  # fmt: skip
    await store.record_compactions([one.draft("db.t") for one in decisions])
    await store.record_compactions([decision("gone", table_id=table.id), decision("x", table_id=10**6)])
    row = await store.begin_compaction(
        decision("c", table_id=table.id, input_bytes=100 * MIB), operation_id="op", owner="c", stale_after_ms=1_000
    )
    await store.finish_compaction(row.id, CompactionOutcome(status="failed", reason="x"), owner="c")

    clock.advance(60_000)
    second = Scheduler(CompactionPolicy(), BudgetLimits(bytes_per_hour=60 * MIB), clock)
    await second.restore(store)
    await load(second, store)
    assert [(one.key[1], one.verdict.rule) for one in second.unrecorded()] == [("gone", "no longer needed")]
    assert {entry.key[1]: clock.now_ms() - entry.since_ms for entry in second.queue} == {"a": 60_000, "b": 60_000}
    assert second.take() is None, "what was spent in the last hour is spent"
    left = second.budget.left(clock.now_ms())
    assert left == 60 * MIB - 100 * MIB + MIB
    clock.advance(40 * 60_000)
    assert second.take() is not None
