"""The refresh of layout `tables` on a producer that the test answers for: what it waits for, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import pytest
from kafka import TopicPartition

from astha.testing import FakeRegistry, make_row
from components.kafka_sink.batch_producer import BatchProducer
from components.kafka_sink.client import KafkaClients
from components.kafka_sink.outbox import Outbox
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.table_records import TableRecords
from components.kafka_sink.table_refresh import TableRefresh
from components.kafka_sink.worker import Worker
from components.lib.change_formats import Origin
from registry.contract import ConsistentRead
from registry.models import LakeTable, Row, TableFile
from registry.position import Position
from tests.unit.components.kafka_sink.producer_double import FakeBatch, FakeProducer
from tests.waiting import eventually

MARKERS = "astha.transaction"
IN_FLIGHT_BYTES = 100_000
PAGE_ROWS = 500


class EmptyTopics:
    """A consumer."""

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    beginning_offsets = end_offsets

    def close(self) -> None:
        return


class Clients:
    def consumer(self) -> EmptyTopics:
        return EmptyTopics()


class Refreshing:
    def __init__(self, producer: FakeProducer, **settings: Any) -> None:
        self.producer = producer
        chosen = {"bootstrap_servers": "b:1", "transaction_topic": True, "acknowledge_timeout_s": 1_000, **settings}
        self.settings = KafkaSinkSettings.model_validate(chosen)
        self.worker = Worker("test")
        self.outbox = Outbox(self.settings, lambda: cast("BatchProducer", producer), self.worker.interrupted)
        self.too_large: list[bytes] = []
        self.records = TableRecords(
            self.settings, self.outbox, lambda: 0, lambda table, key: self.too_large.append(key)
        )

    async def run(self, snapshot: ConsistentRead) -> None:
        refresh = TableRefresh(
            self.settings, cast("KafkaClients", Clients()), self.worker, self.outbox, self.records, lambda *_: None
        )
        tables = {"tables": 1, "table_files": 1}
        try:
            await refresh.run(snapshot, tables, Origin("astha", "astha", 1, "sqlite"), Position(1))
        finally:
            self.worker.close()


class HeldProducer(FakeProducer):
    """Keeps row batches unacknowledged, as a broker that makes the producer retry them; markers are acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.premature: list[str] = []

    def enqueue(self, batches: list[FakeBatch]) -> None:
        self.order += [_name(batch) for batch in batches]
        for batch in batches:
            unsettled = {one.topic for one in (*self.batches, *batches) if not one.settled and one is not batch}
            if (_name(batch) == "END" and unsettled) or (batch.topic != MARKERS and MARKERS in unsettled):
                self.premature.append(_name(batch))
        self.batches += batches
        for batch in batches:
            if batch.topic == MARKERS:
                batch.finish()

    def held(self) -> list[FakeBatch]:
        return [batch for batch in self.batches if not batch.settled]


def _name(batch: FakeBatch) -> str:
    if batch.topic != MARKERS:
        return batch.topic
    return "+".join(status for status in ("BEGIN", "END") if f'"status":"{status}"'.encode() in batch.records)


async def test_the_end_is_sent_when_every_row_is_acknowledged_and_rows_after_the_beginning() -> None:
    """A reader that deletes at END the rows that it has not seen would delete those that are still retried."""
    registry = FakeRegistry()
    registry.commit(*(make_row(TableFile, id=number) for number in range(3)), make_row(LakeTable, id=1))
    producer = HeldProducer()
    producer.batch_bytes = 100_000
    refreshing = asyncio.create_task(Refreshing(producer).run(registry.snapshot()))
    await eventually(lambda: len(producer.held()) == 2, "rows of both tables that are not acknowledged")
    for batch in producer.held():
        batch.finish()
    await asyncio.wait_for(refreshing, 30)
    assert producer.premature == []
    assert [producer.order[0], producer.order[-1]] == ["BEGIN", "END"]
    assert sorted(producer.order[1:-1]) == ["astha.table_files", "astha.tables"]


class CountedSnapshot:
    """Large rows, made page by page. Counts the pages that were asked for."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.pages = 0

    async def rows(self, kind: type[Row]) -> AsyncIterator[list[Row]]:
        for start in range(0, self._rows if kind is TableFile else 0, PAGE_ROWS):
            self.pages += 1
            yield [
                make_row(TableFile, id=number, file_path="x" * 300)
                for number in range(start, min(start + PAGE_ROWS, self._rows))
            ]


class MeasuredProducer(FakeProducer):
    """Acknowledges what is waited for. Measures what is held at each moment."""

    def __init__(self, snapshot: CountedSnapshot) -> None:
        super().__init__()
        self.batch_bytes = 10_000
        self.acknowledges_when_awaited = True
        self._snapshot = snapshot
        self.records = self.most_bytes = self.most_pages = 0

    def batch(self, topic: str, partition: int, records: bytes, count: int) -> FakeBatch:
        self.records += count
        return super().batch(topic, partition, records, count)

    def enqueue(self, batches: list[FakeBatch]) -> None:
        self.batches = [batch for batch in self.batches if not batch.settled]
        super().enqueue(batches)
        self.most_bytes = max(self.most_bytes, sum(len(batch.records) for batch in self.batches))
        self.most_pages = max(self.most_pages, self._snapshot.pages - self.records // PAGE_ROWS)


@pytest.mark.parametrize("rows", [2_000, 8_000])
async def test_a_refresh_holds_two_pages_and_the_bytes_in_flight_however_many_rows_there_are(rows: int) -> None:
    snapshot = CountedSnapshot(rows)
    producer = MeasuredProducer(snapshot)
    refreshing = Refreshing(producer, transaction_topic=False, max_in_flight_bytes=IN_FLIGHT_BYTES)
    await refreshing.run(cast("ConsistentRead", snapshot))
    assert producer.records == rows
    assert IN_FLIGHT_BYTES // 4 < producer.most_bytes <= IN_FLIGHT_BYTES * 1.2  # headers come in addition
    assert producer.most_pages <= 3  # the next, that being sent, and a part of one that is collected
    assert not refreshing.outbox._acknowledged
    assert not refreshing.outbox._in_flight
