"""Random commits, crashes, refreshes and broker failures: in the end the topics hold the registry's rows."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from astha.events import Transaction
from astha.subscribers import LakeTable, Retry, Row, TableFile, Topic
from astha.testing import deliver, make_row
from components.kafka_sink.subscriber import KafkaSink
from registry.position import Position
from tests.integration.components.kafka_sink.harness import Harness
from tests.servers.kafka import KafkaBroker

SETTINGS: dict[str, Any] = {
    "acknowledge_timeout_s": 0.5, "request_timeout_s": 1.0, "connect_timeout_s": 1.0, "outage_tolerance_s": 0,
    "max_in_flight_bytes": 20_000,
}  # fmt: skip
STEPS = 60


class Scenario:
    """A lane, reduced to what matters here: retries, and a replay from the acknowledged position after a crash."""

    def __init__(self, harness: Harness, broker: KafkaBroker, seed: int) -> None:
        self.harness = harness
        self.broker = broker
        self.random = random.Random(seed)
        self.history: list[Transaction] = []
        self.acknowledged = 0  # transactions, as the ledger knows
        self.epoch = 1
        self.sink: KafkaSink | None = None

    async def run(self) -> None:
        await self.open()
        for _ in range(STEPS):
            choices = [self.commit, self.crash, self.refresh, self.restart_broker, self.pause_broker, self.lose]
            (step,) = self.random.choices(choices, weights=[40, 3, 3, 1, 3, 2])
            await step()
        await self.deliver()
        assert self.sink is not None
        await self.sink.stop()

    async def open(self) -> None:
        async def opened() -> KafkaSink:
            sink = self.harness.sink(**SETTINGS)
            try:
                await sink.start()
            except BaseException:
                await sink.stop()
                raise
            return sink

        self.sink = await retried(opened)
        self.sink.resume_at(Position(self.acknowledged), self.epoch)

    async def commit(self) -> None:
        for _ in range(self.random.randrange(1, 8)):
            self.change()
        await self.deliver()

    def change(self) -> None:
        rows = self.harness.registry.rows
        written: list[Row] = [
            make_row(LakeTable, id=self.random.randrange(20), total_size=self.random.randrange(1_000)),
            *(make_row(TableFile, id=self.random.randrange(200)) for _ in range(self.random.randrange(10))),
        ]
        existing = [row for kind in (LakeTable, TableFile, Topic) for row in rows[kind].values()]
        fresh = {(type(row), getattr(row, "id", None)): row for row in written}
        removed = [
            row
            for row in self.random.sample(existing, min(len(existing), self.random.randrange(4)))
            if (type(row), getattr(row, "id", None)) not in fresh
        ]
        self.history.append(self.harness.registry.commit(*fresh.values(), removed=removed))

    async def deliver(self) -> None:
        sink = self.sink
        assert sink is not None
        waiting = self.history[self.acknowledged :]
        while waiting:
            batch, waiting = waiting[:5], waiting[5:]
            await retried(lambda batch=batch: deliver(sink, *batch))
            if self.random.random() < 0.7:  # the ledger is written now and then
                self.acknowledged = len(self.history) - len(waiting)
        self.acknowledged = max(self.acknowledged, len(self.history) - self.random.randrange(6))

    async def crash(self) -> None:
        """The next process sends again what the ledger does not know."""
        assert self.sink is not None
        await self.sink.stop()
        self.epoch += 1
        await self.open()
        await self.deliver()

    async def refresh(self) -> None:
        sink = self.sink
        assert sink is not None

        async def once() -> None:
            sink.resume_at(self.harness.registry.last, self.epoch)
            await sink.on_refresh(self.harness.registry.snapshot())

        await retried(once)
        self.acknowledged = len(self.history)

    async def lose(self) -> None:
        """Commits that the sink never gets, and an interrupted delivery: the circuit is open, then a refresh."""
        assert self.sink is not None
        self.change()
        self.broker.pause()
        try:
            with pytest.raises(Retry):
                await deliver(self.sink, self.history[-1])
            for _ in range(5):
                self.change()
        finally:
            self.broker.resume()
        await self.refresh()

    async def restart_broker(self) -> None:
        self.change()
        delivering = asyncio.create_task(self.deliver())
        await asyncio.sleep(self.random.random() / 20)
        self.broker.restart()
        await delivering

    async def pause_broker(self) -> None:
        self.broker.pause()
        self.change()
        delivering = asyncio.create_task(self.deliver())
        await asyncio.sleep(self.random.random())
        self.broker.resume()
        await delivering


async def retried(call: Any) -> Any:
    for _ in range(200):
        try:
            return await call()
        except Retry:
            await asyncio.sleep(0.05)
    raise AssertionError("200 attempts failed")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_topics_converge(breakable_kafka: KafkaBroker, topic_prefix: str, seed: int) -> None:
    harness = Harness(breakable_kafka.address, topic_prefix)
    await Scenario(harness, breakable_kafka, seed).run()
    assert harness.in_topics(breakable_kafka) == harness.in_registry()
