"""A clock that jumps expires nothing, in a whole daemon, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from astha.clock import SystemLoopClock
from astha.clock_guard import ClockGuard, ClockSettings
from astha.lanes.state import LaneState
from astha.server.status import DaemonIdentity, report
from astha.settings import Settings
from astha.telemetry.metrics import DaemonCollector
from astha.wiring import AssembledDaemon, assemble
from components.segment_store.maintenance.retention import TopicRetention
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.inputs import SegmentDraft
from registry.models import DatabaseTime
from tests.doubles.clock import ManualClock
from tests.fixtures.sources import release_slot, slot_of
from tests.integration.components.lib.streams.harness import StreamHarness
from tests.integration.components.segment_store.maintenance.test_retention import bases, configure
from tests.waiting import eventually

HOUR_MS = 3_600_000

SUBSCRIPTIONS = """
components:
  segment_store:
    tables: [topics, partitions, segments, partition_leases]
    settings: {merge: false, retention_every_s: 0.02, cleanup_every_s: 0.02}
"""


class SetClock(SystemLoopClock):
    """The clock of the machine, which the test sets."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@asynccontextmanager
async def daemon(url: str, directory: Path, clock: SetClock, settle_s: float) -> AsyncIterator[AssembledDaemon]:
    subscriptions = directory / "subscriptions.yaml"
    await asyncio.to_thread(subscriptions.write_text, SUBSCRIPTIONS)
    settings = Settings.model_validate(
        {
            "registry": {"url": url},
            "subscriptions": subscriptions,
            "clock": {"settle_s": settle_s},
            "lake": {"warehouse": str(directory / "warehouse")},
            "source": {"slot": slot_of(url)} if url.startswith("postgresql") else {},
        }
    )
    assembly = await assemble(settings, clock)
    task = asyncio.create_task(assembly.daemon.run())
    try:
        await eventually(lambda: assembly.daemon.lanes[0].state is LaneState.LIVE, "a live component", 60)
        yield assembly
    finally:
        assembly.daemon.stop()
        await asyncio.wait_for(task, 60)
        await assembly.stores.close()
        if url.startswith("postgresql"):
            await asyncio.to_thread(release_slot, url)


async def records(store: MetadataStore) -> int:
    return sum(segment.record_count for segment in await store.get_segments("events", 0))


async def rounds(assembly: AssembledDaemon, count: int) -> None:
    """Waits until retention or cleanup has asked for permission so many times."""
    guard = assembly.daemon.clock_guard
    assert guard is not None
    trusted, asked = guard.trusted, 0

    async def counted() -> bool:
        nonlocal asked
        asked += 1
        return await trusted()

    guard.trusted = counted  # type: ignore[method-assign]
    await eventually(lambda: asked >= count, f"{count} rounds")


def metric(assembly: AssembledDaemon, clock: SetClock, name: str) -> float:
    found = {family.name: family for family in DaemonCollector(assembly.daemon, clock).collect()}
    return found[name].samples[0].value


@pytest.mark.slow
async def test_a_daemon_whose_clock_jumps_forward_keeps_the_records(url: str, tmp_path: Path) -> None:
    clock = SetClock()
    store = await open_store(url)
    try:
        await store.create_topic("events", 1, retention_ms=HOUR_MS)
        await store.add_segments(
            [SegmentDraft("events", 0, n * 100, n * 100 + 99, 100, 1, "b", f"k{n}") for n in range(10)]
        )
        await store.record_intents(["file:///nowhere/object"], purpose="segments", owner="a writer")
        async with daemon(url, tmp_path, clock, settle_s=3600) as assembly:
            clock.ahead_ms = 2 * HOUR_MS
            me = DaemonIdentity("holder", "registry", 20.0)
            await eventually(lambda: report(assembly.daemon, clock, me, None).clock is not None, "a reason")
            assert metric(assembly, clock, "astha_clock_trusted") == 0
            assert metric(assembly, clock, "astha_clock_jumps") == 1
            await rounds(assembly, 20)
            assert await records(store) == 1_000
            assert len(await store.list_stale_intents(0)) == 1
            clock.ahead_ms = 0
            await eventually(
                lambda: report(assembly.daemon, clock, me, None).clock is None, "a clock that is right again"
            )
            assert await records(store) == 1_000
    finally:
        await store.close()


async def test_a_confirmed_time_expires_old_segments(sqlite_url: str, tmp_path: Path) -> None:
    clock = SetClock()
    store = await open_store(sqlite_url)
    try:
        await store.create_topic("events", 1, retention_ms=HOUR_MS)
        await store.add_segments([SegmentDraft("events", 0, 0, 99, 100, 1, "b", "k")])
        async with daemon(sqlite_url, tmp_path, clock, settle_s=0.2):
            clock.ahead_ms = 2 * HOUR_MS

            async def expired() -> bool:
                return await records(store) == 0

            await eventually(expired, "no records")
    finally:
        await store.close()


async def test_retention_by_size_continues_while_the_clock_is_not_trusted(
    harness: StreamHarness, clock: ManualClock
) -> None:
    await harness.write(10, 10, 10)
    await configure(harness, retention_ms=60_000, retention_records=15)

    async def no_clock() -> DatabaseTime:  # the test's time is not the database's
        return DatabaseTime(None)

    guard = ClockGuard(clock, ClockSettings(), no_clock)
    retention = TopicRetention(harness.store, clock, 100, guard=guard)
    clock.set(clock.now_ms() + 2 * HOUR_MS)
    assert await retention.enforce() == 1
    assert await bases(harness) == [10, 20]
