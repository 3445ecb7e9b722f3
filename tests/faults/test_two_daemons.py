"""Two daemons in two processes, one frozen for longer than its lease: they never deliver at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.daemon_process import COMPONENTS, Order
from tests.faults.durable_component import Reading
from tests.faults.oracle import Process, contents
from tests.fixtures.sources import release_slot
from tests.fixtures.stores import OpenStore
from tests.waiting import eventually

pytestmark = pytest.mark.slow

LEASE_S = 1.0


class Daemon:
    def __init__(self, url: str, directory: Path, holder: str) -> None:
        self.directory = directory
        self.process = Process(Order(url, url, str(directory), holder, 0.0, holder, LEASE_S), holder)
        self.process.start()

    def calls(self) -> dict[str, int]:
        """How often each component has been called by this process."""
        what = f"calls by {self.process.pid}"
        return {name: Reading(self.directory / f"{name}.db").counts().get(what, 0) for name in COMPONENTS}


async def test_a_daemon_frozen_for_longer_than_its_lease(url: str, opened: OpenStore, tmp_path: Path) -> None:
    store = await opened(url)

    async def write(name: str) -> set[tuple[str, str, str]]:
        await store.ensure_consumer_group(name)
        return await contents(store, ["consumer_groups"])

    def agreed(wanted: set[tuple[str, str, str]]) -> bool:
        path = tmp_path / "groups.db"
        return path.exists() and Reading(path).rows() == wanted

    one = Daemon(url, tmp_path, "one")
    two = None
    try:
        first = await write("first")
        await eventually(lambda: agreed(first), "the first leads")
        two = Daemon(url, tmp_path, "two")
        await eventually(two.process.ready().exists, "the second stands by")
        one.process.freeze(True)
        frozen = one.calls()
        second = await write("second")
        await eventually(lambda: agreed(second), "the second leads")
        assert one.calls() == frozen
        one.process.freeze(False)
        for number in range(20):
            third = await write(f"third {number}")
            await asyncio.sleep(LEASE_S / 10)
        await eventually(lambda: agreed(third), "the second goes on")
        assert one.calls() == frozen, "woken up, it has called nobody"
        assert two.calls()["groups"] > 0
        await two.process.stop()
        fourth = await write("fourth")
        await eventually(lambda: agreed(fourth), "the first leads again")
        await one.process.stop()
        assert [Reading(tmp_path / f"{name}.db").violations() for name in COMPONENTS] == [[]] * len(COMPONENTS)
    finally:
        for daemon in (one, two):
            if daemon is not None:
                daemon.process.kill()
        if url.startswith("postgres"):
            await asyncio.to_thread(release_slot, url, "oracle")
