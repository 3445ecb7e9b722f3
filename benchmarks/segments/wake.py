"""Time until a reader that waits at the end of a partition has the records that another process writes.

From the commit of their segment, by the database's own clock, until the read answers: the event on its way, the
question to storage, the block decoded. Reader and database are on the same machine, so their clocks are one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection

import msgspec
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.events import Event
from astha.settings import RegistrySettings, Settings
from astha.sources.factory import open_live_source
from astha.subscribers.context import ComponentContext, LakeSettings
from benchmarks.report import Report, percentile
from components.lib.lake.storage.objects import Objects
from components.lib.streams.agents import LeaseAgent
from components.lib.streams.change_feed import ChangeFeed, PartitionKey
from components.lib.streams.feed_updater import FeedUpdater
from components.lib.streams.read_context import BorrowedStore
from components.lib.streams.reader.block_cache import BlockCache
from components.lib.streams.reader.blocks import decode
from components.lib.streams.reader.reader import Reader
from components.lib.streams.writer import SegmentWriter
from registry.cache import CachedStore
from registry.connect import open_store
from registry.models import Row, Segment

TOPIC = "wake"
PARTITIONS = 20
RATE = 50  # appends a second
_WARM_UP = 100  # appends that don't count
_LIMIT_S = 60


class WakeJob(msgspec.Struct, kw_only=True):
    url: str
    lake: LakeSettings


class NotingChangeFeed(ChangeFeed):
    """Records when each segment was committed, in microseconds."""

    def __init__(self, store: CachedStore) -> None:
        super().__init__(store)
        self.committed: dict[tuple[PartitionKey, int], int] = {}

    def apply(self, transactions: Iterable[Sequence[Event[Row]]]) -> None:
        given = list(transactions)
        for events in given:
            for event in events:
                row = event.data
                if isinstance(row, Segment):
                    self.committed[(row.topic, row.partition_id), row.end_offset + 1] = event.committed_at
        super().apply(given)


async def wake_figures(report: Report, around: ComponentContext) -> None:
    appends = report.pick(1_500, 100) + _WARM_UP
    await around.store.create_topic(TOPIC, PARTITIONS)
    processes = multiprocessing.get_context("spawn")
    words, theirs = processes.Pipe()
    job = WakeJob(url=around.registry_url.get_secret_value(), lake=around.lake)
    process = processes.Process(target=_serve, args=(job, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        await asyncio.to_thread(_answer, words)
        await _append(around, appends)
        words.send(appends)
        answered = await asyncio.to_thread(_answer, words)
    finally:
        process.kill()
        process.join()
    late_ms = msgspec.convert(answered, list[float])[_WARM_UP:]
    report.add(
        "wake_p99_ms",
        percentile(late_ms, 0.99),
        f"{len(late_ms):,} appends at {RATE}/s by one process, {PARTITIONS} readers waiting at the ends of as many "
        f"partitions in another: from the commit (PostgreSQL's time of it) to the answer of the read, its GET from S3 "
        f"included; p50 {percentile(late_ms, 0.5):.1f} ms, largest {max(late_ms):.0f} ms",
        at_most=50,
    )


async def _append(around: ComponentContext, appends: int) -> None:
    async with LeaseAgent(around.store, around.clock) as agent, SegmentWriter(around, agent) as writer:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(appends):
                await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
                group.create_task(writer.append(TOPIC, number % PARTITIONS, [b"wake up"]))


def _answer(words: Connection) -> object:
    if not words.poll(_LIMIT_S):
        raise SystemExit(f"the waiting reader says nothing for {_LIMIT_S} s")
    return words.recv()


def _serve(job: WakeJob, parent: Connection) -> None:
    asyncio.run(_wait(job, parent))


async def _wait(job: WakeJob, parent: Connection) -> None:
    settings, clock = Settings(registry=RegistrySettings(url=SecretStr(job.url))), SystemLoopClock()
    late_ms: list[float] = []
    ends = [0] * PARTITIONS
    async with AsyncExitStack() as stack:
        store = await open_store(job.url)
        stack.push_async_callback(store.close)
        cached = CachedStore(BorrowedStore(store), clock=clock)
        feed = NotingChangeFeed(cached)
        reader = Reader(feed, BlockCache(Objects(job.lake), decode), clock)
        live_source = open_live_source(job.url, settings.source, settings.change_log, clock)
        await stack.enter_async_context(FeedUpdater(live_source, feed, clock))

        async def follow(partition: int) -> None:
            while True:
                found = await reader.read(TOPIC, partition, ends[partition], wait_s=_LIMIT_S)
                now = time.time() * 1e6
                ends[partition] = found.next_offset
                for batch in found.batches:  # each is one segment's; one that was seen before it was told is not late
                    committed = feed.committed.get(((TOPIC, partition), batch.next_offset), now)
                    late_ms.append((now - committed) / 1000)

        readers = [asyncio.create_task(follow(number)) for number in range(PARTITIONS)]
        stack.callback(lambda: [task.cancel() for task in readers])
        await asyncio.sleep(0.2)  # they are at their ends
        parent.send(None)
        wanted = await asyncio.to_thread(parent.recv)
        while sum(ends) < wanted:  # noqa: ASYNC110  (an event would be one more thing to do between news and answer)
            await asyncio.sleep(0.01)
        parent.send(late_ms)
