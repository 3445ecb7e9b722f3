"""The pathological workload: very many partitions, each of which gets ten bytes at a time.

An open loop: appends are made when their time has come, whether or not others have been answered, and an append is as
late as its answer is after that time. So nothing is left out while the machine can't follow, and a rate that it does
not sustain shows in the figures.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import NamedTuple

import psutil

from astha.subscribers.context import ComponentContext
from benchmarks.processes import tree_cpu_seconds
from benchmarks.report import Report, percentile
from benchmarks.segments.consumer import ConsumerJob, ConsumerProcess
from components.lib.streams.agents import LeaseAgent
from components.lib.streams.writer import SegmentWriter, WriterSettings, WriterStatistics
from registry.contract import MetadataStore
from registry.forwarding import ForwardingStore
from registry.inputs import Fence, ProducerDraft, SegmentDraft

BATCH = b"ten bytes."
RATE = 3_200  # appends a second, of all partitions together
_TICK_S = 0.002
_TOGETHER = WriterSettings().max_object_segments
_WARM_UP = 4_000  # appends of another topic, which don't count


class Timed(ForwardingStore):
    """Records how long each registering transaction takes, as its caller sees it."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self.seconds = array("d")

    async def add_segments(
        self,
        segments: Sequence[SegmentDraft],
        *,
        fences: Sequence[Fence] = (),
        producers: Sequence[ProducerDraft] = (),
        intents_of: str | None = None,
    ) -> None:
        started = perf_counter()
        await self.inner.add_segments(segments, fences=fences, producers=producers, intents_of=intents_of)
        self.seconds.append(perf_counter() - started)


@dataclass
class Offered:
    """``late_s`` in the order in which appends were due."""

    late_s: array[float]
    ends: list[int]  # of the partitions, afterwards
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.late_s) / self.seconds

    @property
    def tenths(self) -> tuple[array[float], array[float]]:
        """Returns the first and the last."""
        tenth = max(1, len(self.late_s) // 10)
        return self.late_s[:tenth], self.late_s[-tenth:]

    def p99_of_a_second(self, late_s: array[float]) -> float:
        """Returns their median, which a few slow moments cannot move."""
        step = max(1, round(self.rate))
        seconds = [late_s[start : start + step] for start in range(0, len(late_s), step)]
        return percentile([percentile(list(second), 0.99) for second in seconds], 0.5)


class Cores(NamedTuple):
    writer: float
    servers: float
    stolen: float  # by the host's other guests, as the kernel counts it


async def offer(writer: SegmentWriter, topic: str, partitions: int | range, batches: int, rate: float) -> Offered:
    """Every partition gets ``batches`` appends; each round has them in another order."""
    numbers = range(partitions) if isinstance(partitions, int) else partitions
    offered = Offered(array("d", bytes(8 * len(numbers) * batches)), [0] * len(numbers))
    late, begun = offered.late_s, perf_counter()

    async def append(number: int, partition: int) -> None:
        appended = await writer.append(topic, partition, [BATCH])
        offered.ends[partition - numbers.start] = appended.base_offset + 1
        late[number] = perf_counter() - begun - number / rate

    waiting: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    def answered(task: asyncio.Task[None]) -> None:
        waiting.discard(task)
        if (error := task.exception()) is not None:
            failures.append(error)

    for number, partition in enumerate(_order(numbers, batches)):
        while begun + number / rate > perf_counter():  # noqa: ASYNC110  (time is what is waited for)
            await asyncio.sleep(_TICK_S)
        if failures:
            raise failures[0]
        task = asyncio.create_task(append(number, partition))
        waiting.add(task)
        task.add_done_callback(answered)
    while waiting:
        await asyncio.wait(waiting)
    if failures:
        raise failures[0]
    offered.seconds = perf_counter() - begun
    return offered


def _order(partitions: range, batches: int) -> Iterator[int]:
    dice, numbers = random.Random(7), list(partitions)
    for _ in range(batches):
        dice.shuffle(numbers)
        yield from numbers


async def pathological(
    report: Report, around: ComponentContext, partitions: int, batches: int, suffix: str = ""
) -> None:
    topic = f"pathological{suffix}"
    timed = Timed(around.store)
    around = ComponentContext(timed, around.clock, around.registry_url, around.lake)
    await timed.create_topic(topic, partitions)
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(LeaseAgent(timed, around.clock))
        writer = await stack.enter_async_context(SegmentWriter(around, agent))
        await asyncio.gather(*(agent.acquire(topic, number) for number in range(partitions)))
        await _warm_up(writer, timed, suffix)
        before, cpu, servers = writer.statistics, process_time(), tree_cpu_seconds()
        stolen = psutil.cpu_times().steal
        timed.seconds = array("d")
        offered = await offer(writer, topic, partitions, batches, RATE)
        after, cpu, servers = writer.statistics, process_time() - cpu, tree_cpu_seconds() - servers
        stolen = psutil.cpu_times().steal - stolen
        cores = Cores(cpu / offered.seconds, (servers - cpu) / offered.seconds, stolen / offered.seconds)
        _add(report, offered, list(timed.seconds), before, after, cores, (partitions, batches, suffix))
        await _consumed(report, around, writer, offered.ends, suffix)
        timed.seconds = array("d")
        await _unhurried(writer, topic, report.pick(400, 25))
    alone = list(timed.seconds)
    report.add(
        f"metadata_unhurried_p99_ms{suffix}",
        percentile(alone, 0.99) * 1000,
        f"{len(alone):,} registering transactions of {_TOGETHER} segments, 20 a second and nothing else; "
        f"p50 {percentile(alone, 0.5) * 1000:.1f} ms, largest {max(alone) * 1000:.0f} ms",
    )


async def _unhurried(writer: SegmentWriter, topic: str, rounds: int) -> None:
    """Measures a registering transaction on an otherwise idle machine."""
    for _ in range(rounds):
        await asyncio.gather(*(writer.append(topic, number, [BATCH]) for number in range(_TOGETHER)))
        await asyncio.sleep(0.05)


async def _consumed(
    report: Report, around: ComponentContext, writer: SegmentWriter, ends: list[int], suffix: str
) -> None:
    """Appends more of the same while a consumer reads all partitions."""
    topic, partitions = f"pathological{suffix}", len(ends)
    job = ConsumerJob(url=around.registry_url.get_secret_value(), lake=around.lake, topic=topic, offsets=ends)
    batches = max(1, report.pick(20_000, 3_000) // partitions)
    with ConsumerProcess(job) as consumer:
        await asyncio.to_thread(consumer.ready)
        offered = await offer(writer, topic, partitions, batches, RATE / 2)
        found = await asyncio.to_thread(consumer.finish, partitions * batches)
    p99 = percentile(list(offered.late_s), 0.99)
    report.add(
        f"cache_hit_rate{suffix}",
        found.hit_rate,
        f"{found.records:,} more appends at {RATE // 2:,}/s (p99 {p99 * 1000:.0f} ms), with a consumer of all "
        f"partitions in another process: blocks that its reads found in memory, or on their way there, of "
        f"{found.blocks:,}, each of which it read once; {found.requests:,} GETs for {found.fetched:,} blocks; "
        f"{found.asked:,} questions to the registry in {found.reads:,} reads; records p50/p99 {found.p50_ms:.0f}/"
        f"{found.p99_ms:.0f} ms after they were appended",
        at_least=0.9,
    )


async def _warm_up(writer: SegmentWriter, store: Timed, suffix: str) -> None:
    """Connections, prepared statements, and the storage server's just-in-time compiler."""
    topic = f"warm-up{suffix}"
    await store.create_topic(topic, 1_000)
    await offer(writer, topic, 1_000, _WARM_UP // 1_000, RATE)


def _add(
    report: Report,
    offered: Offered,
    registering: list[float],
    before: WriterStatistics,
    after: WriterStatistics,
    cores: Cores,
    what: tuple[int, int, str],
) -> None:
    partitions, batches, suffix = what
    late = list(offered.late_s)
    segments, objects = after.segments - before.segments, after.objects - before.objects
    windows = after.windows - before.windows
    offered_rate = f"{RATE:,} appends/s offered, {offered.rate:,.0f}/s answered"
    report.add(
        f"append_p99_ms{suffix}",
        percentile(late, 0.99) * 1000,
        f"{len(late):,} appends of 10 bytes, {batches:,} to each of {partitions:,} partitions, from the moment each "
        f"was due to its answer; {offered_rate}; p50 {percentile(late, 0.5) * 1000:.0f} ms, "
        f"largest {max(late) * 1000:.0f} ms; cores: {cores.writer:.2f} for the writer and its producers, "
        f"{cores.servers:.2f} for PostgreSQL and the S3 server, all on one machine, whose host took "
        f"{cores.stolen:.3f} for others",
        at_most=500,
    )
    report.add(
        f"metadata_p99_ms{suffix}",
        percentile(registering, 0.99) * 1000,
        f"{len(registering):,} registering transactions of {segments / len(registering):.0f} segments, from call to "
        f"commit; p50 {percentile(registering, 0.5) * 1000:.1f} ms, largest {max(registering) * 1000:.0f} ms",
        at_most=10,
    )
    report.add(
        f"puts_saved{suffix}",
        1 - objects / segments,
        f"{objects:,} PUTs instead of {segments:,}: one for each partition that a window has something of; "
        f"{windows:,} windows of {offered.seconds / windows * 1000:.0f} ms",
        at_least=0.95,
    )
    first, last = (percentile(list(tenth), 0.99) for tenth in offered.tenths)
    usual = [f"{offered.p99_of_a_second(tenth) * 1000:.0f}" for tenth in offered.tenths]
    report.add(
        f"p99_growth{suffix}",
        last / first,
        f"append p99 of the last tenth, {last * 1000:.0f} ms, over that of the first tenth, {first * 1000:.0f} ms; "
        f"the median second's was {usual[1]} and {usual[0]} ms",
        at_most=1.5,
    )
