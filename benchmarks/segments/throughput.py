"""Records of 1 KB through the whole write path and back: over raw PUTs of the same objects, and over a real Kafka.

All servers keep their files on one disk, and all clients are in Python: what an application in Python gets. The broker
has as many partitions as our topic, one replica each, and leaves syncing to the kernel, as Kafka does by default; the
S3 server does the same, PostgreSQL syncs. Both producers are idempotent and wait for all acknowledgements at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from astha.subscribers.context import ComponentContext
from benchmarks.report import Report
from benchmarks.segments.kafka_peer import KafkaPeer
from components.lib.lake.storage.objects import Objects
from components.lib.streams.agents import LeaseAgent
from components.lib.streams.consumer import Consumer
from components.lib.streams.read_context import ReadContext
from components.lib.streams.writer import AppendId, SegmentWriter, WriterSettings
from tests.servers.kafka import KafkaBroker

PARTITIONS = 8
RECORD_BYTES = 1_000
BATCH = 1_000  # records of one append
IN_FLIGHT = 64  # appends
_DISTINCT = 20_000  # records, which come again and again, further apart than LZ4 looks back


class Throughput:
    """Every round writes the records to a new topic, uploads its objects again, and reads them back."""

    def __init__(self, around: ComponentContext, records: Sequence[bytes]) -> None:
        self._around = around
        self._records = records
        self._objects: list[bytes] = []

    @property
    def stored_bytes(self) -> int:
        """The size of the round's objects."""
        return sum(map(len, self._objects))

    @property
    def objects(self) -> int:
        return len(self._objects)

    async def append(self, topic: str) -> float:
        """Groups the records one by one, as a producer does."""
        await self._around.store.create_topic(topic, PARTITIONS)
        async with AsyncExitStack() as stack:
            agent = await stack.enter_async_context(LeaseAgent(self._around.store, self._around.clock))
            writer = await stack.enter_async_context(SegmentWriter(self._around, agent))
            await asyncio.gather(*(agent.acquire(topic, number) for number in range(PARTITIONS)))
            slots, begun = asyncio.Semaphore(IN_FLIGHT), [0] * PARTITIONS
            batches: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

            async def send(partition: int, batch: list[bytes], append_id: AppendId) -> None:
                try:
                    await writer.append(topic, partition, batch, append_id=append_id)
                finally:
                    slots.release()

            started = perf_counter()
            async with asyncio.TaskGroup() as group:
                for number, record in enumerate(self._records):
                    partition = number % PARTITIONS
                    batch = batches[partition]
                    batch.append(record)
                    if len(batch) == BATCH or number >= len(self._records) - PARTITIONS:
                        await slots.acquire()
                        group.create_task(send(partition, batch, AppendId("benchmark", begun[partition])))
                        begun[partition] += len(batch)
                        batches[partition] = []
            seconds = perf_counter() - started
        await self._fetch_objects(topic)
        return seconds

    async def put(self, topic: str) -> float:
        """Uploads the round's objects again, with the writer's client and as many at a time."""
        objects, slots = Objects(self._around.lake), asyncio.Semaphore(WriterSettings().parallel_uploads)

        async def put(number: int, data: bytes) -> None:
            async with slots:
                await objects.put(f"{self._around.lake.warehouse}/raw/{topic}/{number}", data)

        started = perf_counter()
        await asyncio.gather(*(put(number, data) for number, data in enumerate(self._objects)))
        return perf_counter() - started

    async def consume(self, topic: str) -> float:
        """With an empty cache, to a Python object of each record."""
        reading = ReadContext(self._around)
        started = perf_counter()
        seen = size = 0
        async with Consumer(reading.prefetcher, topic, dict.fromkeys(range(PARTITIONS), 0)) as consumer:
            while seen < len(self._records):
                polled = await consumer.poll(wait_s=1.0)
                for record in polled.records if polled is not None else ():
                    seen += 1
                    size += len(record.value or b"")
        seconds = perf_counter() - started
        assert size == sum(map(len, self._records)), "not the records that were written"
        await reading.close()
        return seconds

    async def _fetch_objects(self, topic: str) -> None:
        uris = [
            segment.uri
            for partition in range(PARTITIONS)
            async for segment in self._around.store.stream_segments(topic, partition)
        ]
        objects = Objects(self._around.lake)
        self._objects = [await objects.get(uri) for uri in dict.fromkeys(uris)]


async def throughput_figures(report: Report, around: ComponentContext, directory: Path) -> None:
    distinct = _records()
    given = [distinct[number % _DISTINCT] for number in range(report.pick(200_000, 40_000))]
    ours = Throughput(around, given)
    steps: dict[str, Callable[[str], Awaitable[float]]] = {"append": ours.append, "put": ours.put}
    async with AsyncExitStack() as stack:
        if not report.quick:
            broker = stack.enter_context(KafkaBroker(directory / "kafka"))
            peer = KafkaPeer(broker.address, PARTITIONS, given)
            steps |= {
                "consume": ours.consume,
                "kafka_produce": lambda topic: asyncio.to_thread(peer.produce, topic),
                "kafka_consume": lambda topic: asyncio.to_thread(peer.consume, topic),
            }
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(report.pick(6, 3)):
            for name, step in steps.items():
                seconds[name].append(await step(f"throughput-{number}"))
            report.say(", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items()))
    took = {name: median(samples[1:]) for name, samples in seconds.items()}  # the first round warms up
    _add(report, ours, took, len(given))


def _add(report: Report, ours: Throughput, took: dict[str, float], amount: int) -> None:
    rates = {name: amount / seconds for name, seconds in took.items()}
    megabytes = amount * RECORD_BYTES / 1e6
    report.add(
        "append_mb_per_s_vs_put",
        took["put"] / took["append"],
        f"{amount:,} records of {RECORD_BYTES:,} bytes to {PARTITIONS} partitions, {BATCH:,} to an append and "
        f"{IN_FLIGHT} appends in flight ({megabytes / took['append']:.0f} MB/s, {rates['append']:,.0f} records/s), "
        f"over PUTs of the {ours.objects} objects that it made, {ours.stored_bytes / 1e6:.0f} MB, by the same client "
        f"to the same server ({megabytes / took['put']:.0f} MB/s of the same records, "
        f"{ours.stored_bytes / 1e6 / took['put']:.0f} as stored)",
        at_least=0.5,
    )
    if "consume" not in took:
        return
    report.add(
        "produce_vs_kafka",
        took["kafka_produce"] / took["append"],
        f"the same {rates['append']:,.0f} records/s over kafka-python's KafkaProducer, acks=all, LZ4, to a real Kafka "
        f"on the same disk ({rates['kafka_produce']:,.0f}/s); both are given one record after the other",
        at_least=3,
    )
    report.add(
        "consume_vs_kafka",
        took["kafka_consume"] / took["consume"],
        f"reading them all, to a Python object each: Consumer with empty caches, every block from S3 "
        f"({rates['consume']:,.0f} records/s), over KafkaConsumer ({rates['kafka_consume']:,.0f}/s)",
        at_least=3,
    )


def _records() -> list[bytes]:
    dice = random.Random(11)
    return [_record(dice) for _ in range(_DISTINCT)]


def _record(dice: random.Random) -> bytes:
    """An order with its lines, which LZ4 makes a third as large."""
    lines = ",".join(
        f'{{"sku":"{dice.getrandbits(64):x}","name":"article {dice.randrange(5_000)}",'
        f'"quantity":{dice.randrange(1, 20)},"price":{dice.random() * 100:.2f},"currency":"EUR"}}'
        for _ in range(9)
    )
    text = f'{{"order":{dice.randrange(10**9)},"customer":"customer-{dice.randrange(5_000)}","lines":[{lines}]}}'
    return text.encode()[:RECORD_BYTES].ljust(RECORD_BYTES)
