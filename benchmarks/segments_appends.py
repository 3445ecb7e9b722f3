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
from dataclasses import dataclass, field
from time import perf_counter, process_time

from astha.subscribers.surroundings import Surroundings
from benchmarks.processes import tree_cpu_seconds
from benchmarks.report import Report, percentile
from benchmarks.segments_consumer import ConsumerJob, ConsumerProcess, Consumption
from components.segment_store.agents import Agent
from components.segment_store.writer import SegmentWriter, WriterStatistics
from registry.contract import MetadataStore
from registry.drafts import Fence, ProducerDraft, SegmentDraft
from registry.forwarding import ForwardingStore

BATCH = b"ten bytes."
RATE = 4_000  # appends a second, of all partitions together
_TICK_S = 0.002
_WARM_UP = 4_000  # appends of another topic, which don't count


class Timed(ForwardingStore):
    """How long each registering transaction took, as its caller sees it."""

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

    late_s: array[float] = field(default_factory=lambda: array("d"))
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.late_s) / self.seconds

    @property
    def growth(self) -> float:
        """p99 of the last tenth over that of the first."""
        tenth = max(1, len(self.late_s) // 10)
        return percentile(list(self.late_s[-tenth:]), 0.99) / percentile(list(self.late_s[:tenth]), 0.99)


async def offer(writer: SegmentWriter, topic: str, partitions: int, batches: int, rate: float) -> Offered:
    """Every partition gets ``batches`` appends; each round has them in another order."""
    offered = Offered(array("d", bytes(8 * partitions * batches)))
    late, begun = offered.late_s, perf_counter()

    async def append(number: int, partition: int) -> None:
        await writer.append(topic, partition, [BATCH])
        late[number] = perf_counter() - begun - number / rate

    waiting: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    def answered(task: asyncio.Task[None]) -> None:
        waiting.discard(task)
        if (error := task.exception()) is not None:
            failures.append(error)

    for number, partition in enumerate(_order(partitions, batches)):
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


def _order(partitions: int, batches: int) -> Iterator[int]:
    dice, numbers = random.Random(7), list(range(partitions))
    for _ in range(batches):
        dice.shuffle(numbers)
        yield from numbers


async def pathological(report: Report, around: Surroundings, partitions: int, batches: int, suffix: str = "") -> None:
    topic = f"pathological{suffix}"
    timed = Timed(around.store)
    around = Surroundings(timed, around.clock, around.registry_url, around.lake)
    await timed.create_topic(topic, partitions)
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(Agent(timed, around.clock))
        writer = await stack.enter_async_context(SegmentWriter(around, agent))
        await asyncio.gather(*(agent.hold(topic, number) for number in range(partitions)))
        await _warm_up(writer, timed, suffix)
        job = ConsumerJob(
            url=around.registry_url.get_secret_value(), lake=around.lake, topic=topic, partitions=partitions
        )
        consumer = stack.enter_context(ConsumerProcess(job))
        await asyncio.to_thread(consumer.ready)
        before, cpu, everything = writer.statistics, process_time(), tree_cpu_seconds()
        timed.seconds = array("d")
        offered = await offer(writer, topic, partitions, batches, RATE)
        consumption = await asyncio.to_thread(consumer.finish, partitions * batches)
        after, cpu, everything = writer.statistics, process_time() - cpu, tree_cpu_seconds() - everything
    servers = everything - cpu - consumption.cpu_s
    cores = [f"{name} {took / offered.seconds:.2f}" for name, took in
             (("writer", cpu), ("consumer", consumption.cpu_s), ("PostgreSQL and S3 server", servers))]  # fmt: skip
    report.say(f"cores: {', '.join(cores)}")
    _add(report, offered, list(timed.seconds), before, after, consumption, (partitions, batches, suffix))


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
    consumption: Consumption,
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
        f"largest {max(late) * 1000:.0f} ms; beside it a consumer of all partitions in another process, "
        f"PostgreSQL and the S3 server on the same machine",
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
    report.add(
        f"p99_growth{suffix}",
        offered.growth,
        "append p99 of the last tenth over that of the first tenth",
        at_most=1.5,
    )
    report.add(
        f"cache_hit_rate{suffix}",
        consumption.hit_rate,
        f"blocks that the consumer's reads found in memory, or on their way there, of {consumption.blocks:,}, each of "
        f"which it read once; {consumption.requests:,} GETs for {consumption.fetched:,} blocks; "
        f"{consumption.asked:,} questions to the registry in {consumption.reads:,} reads; {consumption.records:,} "
        f"records, p50/p99 {consumption.p50_ms:.0f}/{consumption.p99_ms:.0f} ms after they were appended",
        at_least=0.9,
    )
