"""100,000 partitions for real, beside 1,000 in the same run: ten agents in processes of their own, which append at the
same rate to either; one of them is killed.

`python -m benchmarks.segments.partitions`. The two topics are in one registry, so the smaller one is measured twice:
before the large one exists, and after it has been written.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from array import array
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import msgspec
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from benchmarks.registries import age, new_registry
from benchmarks.report import Report, percentile, run
from benchmarks.segments.agent_process import LEASE_S, Acquire, AgentProcess, Offer
from benchmarks.segments.appends import BATCH
from components.lib.streams.consumer import Consumer
from components.lib.streams.read_context import ReadContext
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.models import Partition, Segment
from tests.servers.s3 import S3Server

AGENTS = 10
SMALL, LARGE = 1_000, 100_000
RATE = 2_000  # appends per second, of all agents together
BUCKET = "partitions"
_FIND_PAUSE_S = 0.02
_READ_BACK = 1_000  # partitions
_WAL_MB = 2048
_SERVER = {"shared_buffers": "256MB", "min_wal_size": f"{_WAL_MB}MB", "max_wal_size": "4GB"}


class Load(msgspec.Struct):
    """What all agents saw, in seconds, and what one process asked of the registry meanwhile."""

    append_s: list[float]
    register_s: list[float]
    find_s: list[float]
    seconds: float
    objects: int
    memory_mb: list[float]

    def p99_ms(self, what: str) -> float:
        samples: list[float] = getattr(self, f"{what}_s")
        return percentile(samples, 0.99) * 1_000

    def p50_ms(self, what: str) -> float:
        samples: list[float] = getattr(self, f"{what}_s")
        return median(samples) * 1_000


class Fleet:
    def __init__(self, stack: ExitStack, url: str, lake: LakeSettings) -> None:
        self.agents = [AgentProcess(url, lake, f"agent-{number}") for number in range(AGENTS)]
        for agent in self.agents:
            stack.callback(agent.kill)

    def share(self, number: int, partitions: int) -> range:
        return range(number * partitions // AGENTS, (number + 1) * partitions // AGENTS)

    async def acquire(self, topic: str, partitions: int) -> float:
        """Returns the seconds until every agent has its share of the partitions."""
        started = perf_counter()
        for number, agent in enumerate(self.agents):
            agent.tell(Acquire(topic, self.share(number, partitions)))
        for agent in self.agents:
            await asyncio.to_thread(agent.acquired)
        return perf_counter() - started

    async def load(self, store: MetadataStore, topic: str, partitions: int, batches: int) -> Load:
        for number, agent in enumerate(self.agents):
            agent.tell(Offer(topic, self.share(number, partitions), batches, RATE / AGENTS))
        finder = asyncio.create_task(_find(store, topic, partitions, batches))
        found = [await asyncio.to_thread(agent.offered) for agent in self.agents]
        finder.cancel()
        finds = (await asyncio.gather(finder, return_exceptions=True))[0]
        assert isinstance(finds, list)
        return Load(
            [late for one in found for late in array("d", one.late_s)],
            [took for one in found for took in array("d", one.registering_s)],
            finds,
            max(one.seconds for one in found),
            sum(one.objects for one in found),
            [one.memory_mb for one in found],
        )


async def _find(store: MetadataStore, topic: str, partitions: int, batches: int) -> list[float]:
    """Looks for offsets in partitions at random until it is cancelled. Returns the seconds of each lookup."""
    dice, seconds = random.Random(5), []
    try:
        while True:
            await asyncio.sleep(_FIND_PAUSE_S)
            started = perf_counter()
            await store.find_segment_for_offset(topic, dice.randrange(partitions), dice.randrange(batches))
            seconds.append(perf_counter() - started)
    except asyncio.CancelledError:
        return seconds


async def partition_figures(report: Report, server: EmbeddedPostgres, s3: S3Server) -> None:
    large = report.pick(LARGE, 5_000)
    appends = report.pick(1_000_000, 20_000)
    url, store = await new_registry(server, "partitions")
    lake = LakeSettings(warehouse=f"s3://{BUCKET}/lake", s3=s3.settings)
    with ExitStack() as stack:
        fleet = Fleet(stack, url, lake)
        idle_mb = [await asyncio.to_thread(agent.ready) for agent in fleet.agents]
        report.say(f"{AGENTS} agents, {median(idle_mb):.0f} MB each")
        await _measure(report, fleet, store, "warm_up", SMALL, report.pick(20, 4))
        before = await _measure(report, fleet, store, "small", SMALL, max(1, appends // 10 // SMALL))
        loaded = await _measure(report, fleet, store, "large", large, appends // large)
        again = await _measure(report, fleet, store, "again", SMALL, max(1, appends // 10 // SMALL))
        _growth(report, before, again, loaded, large)
        report.add(
            "agent_mb", max(loaded.memory_mb),
            f"resident memory of the largest of {AGENTS} agents, each with {large // AGENTS:,} leases, after its part "
            f"of {len(loaded.append_s):,} appends; {max(before.memory_mb):.0f} with {SMALL // AGENTS} leases, "
            f"{max(idle_mb):.0f} before it held any",
        )  # fmt: skip
        await _verify(report, store, "large", large, appends // large)
        around = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)
        await _read_back(report, around, "large", large, appends // large)
        await _takeover(report, fleet, large)
        await _refresh(report, store)
    await store.close()


async def _measure(
    report: Report, fleet: Fleet, store: MetadataStore, topic: str, partitions: int, batches: int
) -> Load:
    started = perf_counter()
    await store.create_topic(topic, partitions)
    created_s = perf_counter() - started
    acquired_s = await fleet.acquire(topic, partitions)
    if topic == "large":
        report.add("create_s", created_s, f"creating a topic of {partitions:,} partitions, one transaction")
        what = f"{AGENTS} agents acquire {partitions // AGENTS:,} leases each, at the same time"
        report.add("acquire_s", acquired_s, what)
    load = await fleet.load(store, topic, partitions, batches)
    report.say(
        f"{len(load.append_s):,} appends to {partitions:,} partitions in {load.seconds:.0f} s, {load.objects:,} "
        f"objects: append p99 {load.p99_ms('append'):.0f} ms, registration {load.p99_ms('register'):.1f}, find "
        f"{load.p99_ms('find'):.1f}"
    )
    return load


def _growth(report: Report, before: Load, again: Load, loaded: Load, large: int) -> None:
    names = {"append": "an append, from when it was due", "register": "a registration", "find": "a lookup by offset"}
    for what, name in names.items():
        base = fmean([before.p99_ms(what), again.p99_ms(what)])
        report.add(
            f"partitions_{what}_p99_growth",
            loaded.p99_ms(what) / base,
            f"p99 of {name}: {loaded.p99_ms(what):.1f} ms with {large:,} partitions (p50 {loaded.p50_ms(what):.1f}) "
            f"over the mean of two with {SMALL:,}, {before.p99_ms(what):.1f} before and {again.p99_ms(what):.1f} "
            f"after (p50 {before.p50_ms(what):.1f} and {again.p50_ms(what):.1f}); {RATE:,} appends/s by {AGENTS} "
            f"processes, {len(loaded.append_s):,} and {len(before.append_s):,} in all",
            at_most=1.5,
        )


async def _verify(report: Report, store: MetadataStore, topic: str, partitions: int, batches: int) -> None:
    started = perf_counter()
    rows = await store.list_partitions(topic)
    assert len(rows) == partitions
    assert {row.high_watermark for row in rows} == {batches}, "appends are missing"
    report.say(f"all {partitions:,} watermarks are right: {perf_counter() - started:.1f} s")


async def _read_back(report: Report, around: ComponentContext, topic: str, partitions: int, batches: int) -> None:
    """Reads some partitions with empty caches. What is in their objects beside them is not read."""
    chosen = random.Random(9).sample(range(partitions), min(_READ_BACK, partitions))
    reading, seen = ReadContext(around), dict.fromkeys(chosen, 0)
    started = perf_counter()
    async with Consumer(reading.prefetcher, topic, seen) as consumer:
        while sum(seen.values()) < batches * len(chosen):
            polled = await consumer.poll(wait_s=1.0)
            if polled is None:  # it is at all ends
                break
            assert all(record.value == BATCH for record in polled.records), "not what was appended"
            seen[polled.partition_id] += len(polled.records)
    seconds = perf_counter() - started
    assert set(seen.values()) == {batches}, "records are missing"
    gets = reading.cache.counts.requests
    await reading.close()
    report.add(
        "read_back_per_s", len(chosen) / seconds,
        f"partitions read from their beginning by one consumer with empty caches, {len(chosen):,} of {partitions:,} at "
        f"random, {batches} appends in as many objects each: {gets / len(chosen):.1f} GETs for each",
    )  # fmt: skip


async def _takeover(report: Report, fleet: Fleet, large: int) -> None:
    """Kills the first agent; the second one takes its partitions as soon as it can."""
    mine = fleet.share(0, large)
    fleet.agents[0].kill()
    killed = perf_counter()
    fleet.agents[1].tell(Acquire("large", mine))
    acquired = await asyncio.to_thread(fleet.agents[1].acquired)
    fleet.agents[1].tell(Offer("large", mine, 1, RATE))
    offered = await asyncio.to_thread(fleet.agents[1].offered)
    assert len(offered.late_s) == 8 * len(mine)
    total = perf_counter() - killed - offered.seconds
    report.add(
        "takeover_s", acquired.seconds,
        f"acquiring the {len(mine):,} leases of an agent that was killed with SIGKILL, once they had expired "
        f"({acquired.waited_s:.1f} s after the kill, lease term {LEASE_S:g} s; {total:.1f} s in all); every one of "
        f"the partitions was appended to afterwards",
    )  # fmt: skip


async def _refresh(report: Report, store: MetadataStore) -> None:
    started, counts = perf_counter(), []
    async with store.consistent_read() as snapshot:
        for kind in (Partition, Segment):
            count = 0
            async for page in snapshot.rows(kind):
                count += len(page)
            counts.append(count)
    report.add(
        "refresh_s", perf_counter() - started,
        f"reading all {counts[1]:,} segments and {counts[0]:,} partitions in one snapshot, as a refresh does",
    )  # fmt: skip


async def measure(report: Report) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name,
        EmbeddedPostgres(settings=_SERVER) as server,
        S3Server(Path(name) / "s3") as s3,
    ):
        age(server, _WAL_MB)
        s3.create_bucket(BUCKET)
        await partition_figures(report, server, s3)


if __name__ == "__main__":
    sys.exit(run("segments_partitions", measure))
