"""Streams for tests: an agent and a writer that can be killed, and reads of everything that is stored."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import obstore
from pydantic import SecretStr

from astha.clock import LoopClock, SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from astha.tasks import cancel_and_wait
from components.lib.lake.storage.locations import parse
from components.lib.lake.storage.objects import Objects, open_bucket
from components.lib.streams.agents import AgentSettings, LeaseAgent
from components.lib.streams.format import BlockIndex, Record, decode_block, partition_tag
from components.lib.streams.writer import SegmentWriter, WriterSettings
from registry.contract import MetadataStore
from registry.models import Segment


class SkippingClock(SystemLoopClock):
    """Sleeps take no time, but are counted. Periodic work, every 2.5 seconds or less often, never runs."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    async def sleep(self, seconds: float) -> None:
        if seconds >= 2.5:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        self._skipped += seconds


class Process:
    """The agent and the writer of one process. `kill` interrupts them wherever they are."""

    def __init__(
        self,
        store: MetadataStore,
        lake: LakeSettings,
        *,
        settings: WriterSettings | None = None,
        agent: AgentSettings | None = None,
        clock: LoopClock | None = None,
        objects: Objects | None = None,
        agent_id: str | None = None,
    ) -> None:
        self.clock = clock or SkippingClock()
        context = ComponentContext(store=store, clock=self.clock, registry_url=SecretStr(""), lake=lake)
        self.agent = LeaseAgent(store, self.clock, agent, agent_id=agent_id)
        self.writer = SegmentWriter(context, self.agent, settings, objects=objects)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Process:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.agent)
            await stack.enter_async_context(self.writer)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def kill(self) -> None:
        """Cancels everything without releasing or flushing anything."""
        agent, writer = self.agent, self.writer
        writer._closing = agent._closing = True
        own = [writer._worker, writer._names._allocation, *writer._uploads, *writer._background._tasks.values()]
        await cancel_and_wait(*[task for task in own if task is not None], *_tasks_of(agent))
        for part in writer._window.parts.values():
            part.fail(ProcessDied())
        self._stack = AsyncExitStack()


async def kill_agent(agent: LeaseAgent) -> None:
    """Cancels everything without releasing leases or deregistering the agent."""
    agent._closing = True
    await cancel_and_wait(*_tasks_of(agent))


def _tasks_of(agent: LeaseAgent) -> list[asyncio.Task[None]]:
    tasks = [*agent._background._tasks.values(), *agent._releases._tasks.values()]
    return tasks if agent._acquiring is None else [*tasks, agent._acquiring]


async def releases_done(agent: LeaseAgent) -> None:
    await asyncio.gather(*agent._releases._tasks.values())


class ProcessDied(Exception):
    pass


async def read_segment(objects: Objects, segment: Segment) -> list[Record]:
    data = await objects.get_range(segment.uri, segment.byte_offset, segment.size_bytes)
    records: list[Record] = []
    for location in BlockIndex.decode(segment.block_index, segment.size_bytes, segment.record_count):
        batch = decode_block(
            data, location.start, base_offset=segment.base_offset, uri=segment.uri, start=segment.byte_offset,
            tag=partition_tag(segment.topic, segment.partition_id),
        )  # fmt: skip
        records += batch
    times = [record.timestamp for record in records]
    assert (min(times), max(times)) == (segment.min_timestamp, segment.max_timestamp)
    return records


async def read_partition(store: MetadataStore, objects: Objects, topic: str, partition_id: int) -> list[Record]:
    """Returns all records. Asserts that offsets are consecutive and end at the watermark."""
    records: list[Record] = []
    async for segment in store.stream_segments(topic, partition_id):
        records += await read_segment(objects, segment)
    first = records[0].offset if records else 0
    assert [record.offset for record in records] == list(range(first, first + len(records))), "a gap or an overlap"
    (partition,) = await store.get_partitions([(topic, partition_id)])
    assert partition.high_watermark == (records[-1].offset + 1 if records else partition.high_watermark)
    return records


async def stored_files(lake: LakeSettings) -> set[str]:
    """Returns all files of the warehouse."""
    if not lake.warehouse.startswith("s3:"):
        return await asyncio.to_thread(_files_below, Path(lake.warehouse))
    location = parse(lake.warehouse)
    bucket = open_bucket(location.root, lake.s3, timedelta(seconds=30), timedelta(seconds=30))
    pages = [page async for page in obstore.list(bucket, location.key)]
    return {f"s3://{location.root}/{found['path']}" for page in pages for found in page}


def _files_below(directory: Path) -> set[str]:
    return {path.as_uri() for path in directory.rglob("*") if path.is_file()}


def _objects_below(directory: Path) -> set[str]:
    return {path.as_uri() for path in directory.rglob("*.segments")}


async def assert_no_orphans(store: MetadataStore, warehouse: Path, topics: dict[str, int]) -> None:
    """Asserts that every object is live or has an intent, not both, and that live ones exist."""
    found = _objects_below(warehouse)
    live = set()
    for topic, partitions in topics.items():
        for number in range(partitions):
            live |= {segment.uri async for segment in store.stream_segments(topic, number)}
    intended = {intent.path for intent in await store.list_stale_intents(0)}
    assert live <= found, "a registered object is missing"
    assert found - live <= intended, "an object without a segment or an intent"
    assert not live & intended, "a registered object that the cleaner would delete"
