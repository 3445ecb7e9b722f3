"""Refreshes under concurrent writers with savepoints: exact, each of them, on both databases.

The component (`durable_component`) checks every event against the row that it has: an event that a refresh contained,
or one missing after it, does not fit. Half a transaction would leave a pair of rows unequal.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astha.lanes.state import LaneState
from tests.faults.durable_component import DurableComponent, FaultInjector, RecordedState
from tests.faults.oracle import contents
from tests.faults.writers import SqlWriter
from tests.fixtures.daemons import RunDaemon
from tests.fixtures.stores import OpenStore

pytestmark = pytest.mark.slow

TABLES = frozenset({"consumer_groups", "topics", "partitions", "consumer_offsets"})
REFRESHES = 40


async def test_refreshes_are_exact(url: str, opened: OpenStore, run_daemon: RunDaemon, tmp_path: Path) -> None:
    store = await opened(url)
    subscribers = {
        name: DurableComponent(
            tmp_path / f"{name}.db", TABLES, FaultInjector(name, tmp_path, 0.0), whole=name == "whole"
        )
        for name in ("whole", "single")
    }
    running = await run_daemon(url, subscribers)
    await running.live()
    over = asyncio.Event()
    writers = [SqlWriter(url, f"exact {number}") for number in range(6)]
    writing = [asyncio.create_task(writer.run(over, 0.001)) for writer in writers]
    try:
        for _ in range(REFRESHES):
            for name in subscribers:
                running.lane(name).refresh("test")
            await running.live()
            await asyncio.sleep(0.02)  # some events between two refreshes
    finally:
        over.set()
        await asyncio.gather(*writing)
    for name in subscribers:
        wanted = await contents(store, sorted(TABLES))
        recorded = RecordedState(tmp_path / f"{name}.db")
        await running.until(lambda recorded=recorded, wanted=wanted: recorded.rows() == wanted, name)  # type: ignore[misc]
        assert recorded.violations() == []
        assert recorded.counts()["refreshes"] > REFRESHES / 2
        assert recorded.counts()["events"] > REFRESHES
        assert running.lane(name).state is LaneState.LIVE
    assert sum(writer.done for writer in writers) > REFRESHES
