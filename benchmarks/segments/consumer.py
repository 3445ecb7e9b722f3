"""A consumer of all partitions of a topic, in a process of its own, which tails the registry itself."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from array import array
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import msgspec
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.settings.models import RegistrySettings, Settings
from astha.subscribers.context import ComponentContext, LakeSettings
from benchmarks.report import percentile
from components.lib.streams.consumer import Consumer
from components.lib.streams.read_context import Reading, open_reading
from components.lib.streams.reader.block_cache import Counts
from registry.connect import open_store

_LIMIT_S = 300


class ConsumerJob(msgspec.Struct, kw_only=True):
    url: str
    lake: LakeSettings
    topic: str
    offsets: list[int]  # where it begins in each partition


class Consumption(msgspec.Struct, frozen=True):
    """``p50_ms`` and ``p99_ms`` count from a record's timestamp, which is that of its append."""

    records: int
    memory: int
    shared: int
    missed: int
    fetched: int
    requests: int
    reads: int
    asked: int  # questions to the registry about segments
    p50_ms: float
    p99_ms: float

    @property
    def blocks(self) -> int:
        return self.memory + self.shared + self.missed

    @property
    def hit_rate(self) -> float:
        return (self.memory + self.shared) / self.blocks if self.blocks else float("nan")


class ConsumerProcess:
    def __init__(self, job: ConsumerJob) -> None:
        processes = multiprocessing.get_context("spawn")
        self._words, theirs = processes.Pipe()
        self._process = processes.Process(target=_serve, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()

    def ready(self) -> None:
        """Waits until it tails the registry."""
        self._answer()

    def finish(self, records: int) -> Consumption:
        """Returns when it has read that many records."""
        self._words.send(records)
        return msgspec.convert(self._answer(), Consumption)

    def _answer(self) -> object:
        if not self._words.poll(_LIMIT_S):
            raise SystemExit(f"the consumer says nothing for {_LIMIT_S} s")
        try:
            return self._words.recv()
        except EOFError:
            raise SystemExit("the consumer has died") from None


def _serve(job: ConsumerJob, parent: Connection) -> None:
    asyncio.run(_consume(job, parent))


async def _consume(job: ConsumerJob, parent: Connection) -> None:
    store = await open_store(job.url)
    around = ComponentContext(store, SystemLoopClock(), SecretStr(job.url), job.lake)
    settings = Settings(registry=RegistrySettings(url=SecretStr(job.url)), lake=job.lake)
    late_ms = array("d")
    async with (
        open_reading(around, settings) as reading,
        Consumer(reading.ahead, job.topic, dict(enumerate(job.offsets))) as consumer,
    ):
        while await consumer.poll() is not None:  # it is at all ends
            continue
        reading.cache.counts, asked = Counts(), reading.store.index.fetches
        parent.send(None)
        wanted, reads = None, 0
        while wanted is None or len(late_ms) < wanted:
            polled = await consumer.poll(wait_s=0.5)
            if polled is not None:
                reads += 1
                now = time.time() * 1000
                late_ms.extend(now - stamp for batch in polled.records.batches for stamp in batch.timestamps)
            if wanted is None and parent.poll():
                wanted = parent.recv()
        parent.send(msgspec.to_builtins(_summary(reading, reads, asked, list(late_ms))))
    await store.close()


def _summary(reading: Reading, reads: int, asked: int, late_ms: list[float]) -> Consumption:
    counts, index = reading.cache.counts, reading.store.index
    return Consumption(
        len(late_ms), counts.memory, counts.shared, counts.missed, counts.storage, counts.requests,
        reads, index.fetches - asked, percentile(late_ms, 0.5), percentile(late_ms, 0.99),
    )  # fmt: skip
