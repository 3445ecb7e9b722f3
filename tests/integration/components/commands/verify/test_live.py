"""With a running daemon: in-flight changes are no difference, lost ones are."""

from __future__ import annotations

import asyncio
import random

import pytest

from astha.subscribers.lane_policy import LanePolicy
from components.commands.verify.report import DifferenceKind, VerificationReport
from registry.inputs import FileDraft
from registry.models import LakeTable, TableFile
from tests.fixtures.daemons import RunDaemon
from tests.integration.components.commands.verify.conftest import Stage, only

UPDATER = "iceberg_updater"


async def test_in_flight_changes_are_waited_for(stage: Stage, run_daemon: RunDaemon) -> None:
    running = await run_daemon(stage.url, {UPDATER: stage.updater()}, policy=LanePolicy())
    await running.live()
    table = await stage.create()
    for _ in range(5):
        await stage.insert(table)
        report = await stage.verify(files=True)
        assert report.equal, report
    await stage.store.drop_table(table.id)
    report = await stage.verify()
    assert report.equal, report


async def test_a_lost_file_is_found_while_the_daemon_runs(stage: Stage, run_daemon: RunDaemon) -> None:
    table = await stage.create()
    await stage.insert(table)
    running = await run_daemon(stage.url, {UPDATER: stage.updater()}, policy=LanePolicy())
    await running.live()
    assert (await stage.verify()).equal
    stage.tables.catalog.drop_table(("shop", "orders"))  # by another tool
    found = only(await stage.verify(table, timeout_s=60.0))
    assert found.kind == DifferenceKind.NO_ICEBERG_TABLE
    assert "has passed this" in found.cause.reason
    assert found.cause.repair == f"`astha refresh {UPDATER}`"
    running.lane(UPDATER).refresh("by hand")
    await running.until(lambda: stage.tables.load(table) is not None, "the table is recreated")
    assert (await stage.verify()).equal


async def test_a_paused_updater_is_not_waited_for(stage: Stage, run_daemon: RunDaemon) -> None:
    table = await stage.create()
    running = await run_daemon(stage.url, {UPDATER: stage.updater()}, policy=LanePolicy())
    await running.live()
    assert (await stage.verify()).equal
    running.lane(UPDATER).pause()

    async def paused() -> bool:
        return [entry.state for entry in await stage.store.read_ledger()] == ["paused"]

    await running.until(paused, "the ledger entry is paused")
    await stage.insert(table)
    found = only(await stage.verify(table, timeout_s=600.0))
    assert found.kind == DifferenceKind.NOT_COMMITTED
    assert found.cause.repair == f"`astha resume {UPDATER}`"


class Writer:
    """Inserts, removes, swaps and restores files at random."""

    def __init__(self, stage: Stage, table: LakeTable, seed: int) -> None:
        self._stage, self._table = stage, table
        self._random = random.Random(seed)
        self._gone: list[TableFile] = []
        self.done = 0

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self._random.choice([self._insert, self._insert, self._remove, self._restore])()
            self.done += 1
            await asyncio.sleep(self._random.random() * 0.05)

    async def _insert(self) -> None:
        await self._stage.insert(self._table, self._random.randint(1, 3))

    async def _remove(self) -> None:
        live = await self._stage.store.list_files(self._table.id)
        if live:
            chosen = self._random.sample(live, min(len(live), 2))
            await self._stage.store.remove_files(self._table.id, chosen, reason="test")
            self._gone += chosen

    async def _restore(self) -> None:
        live = await self._stage.store.list_files(self._table.id, limit=1)
        if not live or not self._gone:
            return
        back = self._gone.pop()
        draft = FileDraft(
            file_path=back.file_path,
            file_size=back.file_size,
            row_count=back.row_count,
            schema_version=back.schema_version,
            checksum=back.checksum,
            column_stats=back.column_stats,
        )
        name = f"back-{self._random.random()}"
        await self._stage.store.swap_files(self._table.id, live, [draft], operation="rollback", operation_id=name)
        self._gone += live


@pytest.mark.slow
async def test_verify_reports_equal_under_writers(stage: Stage, run_daemon: RunDaemon) -> None:
    tables = [await stage.create(name) for name in ("orders", "users", "events")]
    running = await run_daemon(stage.url, {UPDATER: stage.updater()}, policy=LanePolicy())
    await running.live()
    enough = asyncio.Event()
    seed = random.randrange(1_000_000)
    writers = [Writer(stage, table, seed + number) for number, table in enumerate(tables)]
    writing = [asyncio.create_task(writer.run(enough)) for writer in writers]
    reports: list[VerificationReport] = []
    try:
        for round_number in range(12):
            reports.append(await stage.verify(checksums=round_number % 3 == 0))
            assert reports[-1].equal, f"seed {seed}: {reports[-1]}"
            if any(task.done() for task in writing):
                break
    finally:
        enough.set()
        await asyncio.gather(*writing)
    assert all(writer.done > 10 for writer in writers)
    assert len({table.digest for report in reports for table in report.tables}) > 10
    assert (await stage.verify(checksums=True)).equal
