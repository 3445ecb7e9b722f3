"""The component in a daemon: readers woken, segments merged and expired, objects deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext, LakeSettings
from components import metadata_orchestrator
from components.segment_store import create
from components.segment_store.subscriber import SegmentStore
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.inputs import ProducerDraft
from tests.fixtures.daemons import RunDaemon, Running
from tests.integration.components.lib.streams.harness import TOPIC, StreamHarness, numbers
from tests.waiting import eventually

QUICK: dict[str, Any] = {
    "merge_min_age_s": 0, "merge_every_s": 0.02, "merge_min_segments": 3,
    "retention_every_s": 0.02, "cleanup_every_s": 0.02,
}  # fmt: skip
IDLE: dict[str, Any] = {"merge": False, "retention_every_s": 3600, "cleanup_every_s": 3600}


class DaemonHarness:
    """Starts daemons with the component."""

    def __init__(self, url: str, store: MetadataStore, run_daemon: RunDaemon, warehouse: Path) -> None:
        self._url = url
        self.store = store
        self._run_daemon = run_daemon
        self.running: list[Running] = []
        lake = LakeSettings(warehouse=str(warehouse), intents_stale_after_s=0.5)
        self._context = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)

    async def start(self, **settings: Any) -> tuple[SegmentStore, Running]:
        component = create(settings, self._context)
        cleaner = metadata_orchestrator.create({"maintenance_every_s": 0.02}, self._context)
        running = await self._run_daemon(self._url, {"segment_store": component, "metadata_orchestrator": cleaner})
        self.running.append(running)
        await running.live("segment_store")
        return component, running


@pytest.fixture
async def daemons(url: str, run_daemon: RunDaemon, warehouse: Path) -> AsyncIterator[DaemonHarness]:
    store = await open_store(url)
    made = DaemonHarness(url, store, run_daemon, warehouse)
    yield made
    for running in made.running:  # before the store that the component uses
        if not running.task.done():
            await running.stop()
    await store.close()


async def read_all(component: SegmentStore, partition: int = 0, start: int = 0) -> list[int]:
    seen: list[int] = []
    while len(found := await component.read_context.reader.read(TOPIC, partition, start)):
        seen += numbers([record.value for record in found])
        start = found.next_offset
    return seen


def stored_blocks(directory: Path) -> int:
    return sum(path.is_file() for path in directory.glob("*/??/*"))


async def test_a_reader_in_the_daemon_is_woken(daemons: DaemonHarness, harness: StreamHarness) -> None:
    component, _ = await daemons.start(**IDLE)
    waiting = asyncio.create_task(component.read_context.reader.read(TOPIC, 0, 0, wait_s=30))
    await eventually(lambda: bool(component.read_context.change_feed._watches), "a reader that waits")
    await harness.write(3)
    assert numbers([record.value for record in await waiting]) == [0, 1, 2]


async def test_segments_are_merged_expired_and_their_objects_deleted(
    daemons: DaemonHarness, harness: StreamHarness
) -> None:
    await harness.write(*[2] * 5, together=False)  # before the daemon: counted by its refresh
    component, running = await daemons.start(**QUICK)

    async def merged_to(most: int) -> bool:
        return len(await harness.store.get_segments(TOPIC, 0)) <= most

    await running.until(lambda: merged_to(1), "one segment")
    assert await read_all(component) == list(range(10))
    for _ in range(4):
        await harness.write(2)  # after it: counted by events
    await running.until(lambda: merged_to(3), "few segments")
    assert await read_all(component) == list(range(18))
    live = {row.uri for row in await harness.store.get_segments(TOPIC, 0)}
    stored = await running_files(harness, live, running)
    assert stored == live
    await harness.store.update_topic_config(TOPIC, {"retention.records": 0})
    await running.until(lambda: merged_to(0), "everything expired")
    assert await running_files(harness, set(), running) == set()
    measures = {measure.name: measure.value for measure in component.metrics()}
    assert measures["segments_merged"] >= 8
    assert measures["segments_expired"] >= 1
    assert measures["maintenance_failures"] == 0


async def running_files(harness: StreamHarness, wanted: set[str], running: Running) -> set[str]:
    """Returns the files of the warehouse when they are the wanted ones."""

    def found() -> set[str]:
        return {path.as_uri() for path in harness.directory.parent.rglob("*.seg*") if path.is_file()}

    await running.until(lambda: found() == wanted, "only objects that are in use")
    return found()


async def test_maintenance_continues_after_a_killed_daemon(daemons: DaemonHarness, harness: StreamHarness) -> None:
    await harness.write(*[2] * 5, together=False)
    _, running = await daemons.start(**QUICK)
    await running.kill()
    await harness.write(*[2] * 5, together=False)
    component, running = await daemons.start(**QUICK)

    async def merged() -> bool:
        return len(await harness.store.get_segments(TOPIC, 0)) <= 2

    await running.until(merged, "few segments")
    assert await read_all(component) == list(range(20))


async def test_idle_producers_and_silent_agents_are_removed(daemons: DaemonHarness, harness: StreamHarness) -> None:
    """Active ones are kept. The clock of the harness's store is years behind."""
    store = daemons.store
    await harness.store.register_agent("silent", "local")
    await store.register_agent("active", "local")
    for where, number in ((harness.store, 0), (store, 1)):
        draft = ProducerDraft(TOPIC, number, "p", 0, 0, 2, 0, 3)
        drafts = await harness.put_object([3], number, first=0)
        await where.add_segments(drafts, producers=[draft])
    _, running = await daemons.start(**IDLE)

    async def forgotten() -> bool:
        return len(await store.list_agents()) == 1

    await running.until(forgotten, "one agent")
    assert [agent.agent_id for agent in await store.list_agents()] == ["active"]
    known = await store.get_producer_sequences([(TOPIC, number, "p") for number in range(2)])
    assert [row.partition_id for row in known] == [1]


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_invalid_settings_are_refused(harness: StreamHarness, url: str, tmp_path: Path) -> None:
    context = ComponentContext(harness.store, SystemLoopClock(), SecretStr(url), LakeSettings())
    with pytest.raises(ValidationError, match="disk_directory"):
        create({"disk_bytes": 5}, context)
    with pytest.raises(ValidationError):
        create({"merge_min_segments": 1}, context)
    component = create({"disk_bytes": 1 << 20, "disk_directory": str(tmp_path), **IDLE}, context)
    await component.start()
    await harness.write(3)
    assert await read_all(component) == [0, 1, 2]
    await component.stop()
    assert stored_blocks(tmp_path) == 1


async def test_maintenance_waits_for_the_first_refresh_and_reports_stuck_steps(
    daemons: DaemonHarness, harness: StreamHarness
) -> None:
    component = create({**IDLE, "retention_every_s": 3600}, daemons._context)
    await component.start()
    try:
        assert not len(component._maintenance), "retention would go by what it has not counted yet"
        assert await component.on_health()
        stuck = asyncio.Event()
        component.enforce_retention = stuck.wait  # type: ignore[method-assign, assignment]
        await harness.write(3)
        async with daemons.store.consistent_read() as snapshot:
            await component.on_refresh(snapshot)
        await eventually(lambda: [work.name for work in component.work()] == ["retention"], "retention under way")
        component._progress_at["retention"] -= 1_000
        assert [work.stuck for work in component.work()] == [True]
        stuck.set()
        await eventually(lambda: list(component.work()) == [], "its end")
    finally:
        await component.stop()


async def test_consumer_lag_and_leases_are_metrics(daemons: DaemonHarness, harness: StreamHarness) -> None:
    """Groups and leases of before the start and of after it count. The clock of the harness's store is years behind."""
    await harness.write(10)
    for group, offset in (("readers", 4), ("done", 10)):
        await daemons.store.ensure_consumer_group(group)
        await daemons.store.commit_offset(group, TOPIC, 0, offset)
    await daemons.store.register_agent("a", "local")
    await harness.store.acquire_partition_lease(TOPIC, 0, "a", 1_000)
    component, running = await daemons.start(**{**IDLE, "lag_every_s": 0.05})
    await daemons.store.acquire_partition_lease(TOPIC, 1, "a", 600_000)

    def shown() -> dict[tuple[str, ...], float]:
        return {(metric.name, *metric.labels.values()): metric.value for metric in component.metrics()}

    def leases() -> tuple[float, float]:
        return shown()["leases", "held"], shown()["leases", "expired"]

    # The first lease is held for its term of a second after the agent's heartbeat, whatever its own time says.
    await running.until(lambda: leases() == (1, 1), "a lease that is held and one that is expired")
    assert shown()["lease_holders",] == 1
    await running.until(lambda: ("consumer_lag_records", "readers", TOPIC) in shown(), "a measured lag")
    assert shown()["consumer_lag_records", "readers", TOPIC] == 6
    assert shown()["consumer_lag_records", "done", TOPIC] == 0
    assert shown()["consumer_idle_seconds", "done", TOPIC] == 0
    await harness.write(5)
    await running.until(lambda: shown()["consumer_lag_records", "readers", TOPIC] == 11, "a growing lag")
