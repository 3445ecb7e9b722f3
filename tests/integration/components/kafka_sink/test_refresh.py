"""The refresh of layout `tables`: afterwards a consumer that materialises the topics holds the registry's rows."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from astha.subscribers import LakeTable, Row, TableFile, Topic
from astha.testing import deliver, make_row
from components.kafka_sink.outbox import Outbox
from tests.integration.components.kafka_sink.harness import Harness
from tests.kafka_reader import headers_of, read_topic
from tests.servers.kafka import KafkaBroker


@pytest.fixture
def harness(kafka: KafkaBroker, topic_prefix: str) -> Harness:
    return Harness(kafka.address, topic_prefix)


def files(*numbers: int) -> list[Row]:
    return [make_row(TableFile, id=number, file_path=f"path/{number}") for number in numbers]


async def test_rows_deleted_while_the_sink_was_away_become_tombstones(harness: Harness, kafka: KafkaBroker) -> None:
    registry = harness.registry
    async with harness.started() as sink:
        await harness.commit(sink, *files(*range(50)), make_row(Topic, name="gone"), make_row(LakeTable, id=1))
        await harness.commit(sink, removed=tuple(files(7)))
    registry.commit(*files(100, 101), make_row(LakeTable, id=1, total_size=5))
    registry.commit(removed=[*files(*range(0, 50, 10)), make_row(Topic, name="gone")])
    assert harness.in_topics(kafka) != harness.in_registry()
    async with harness.started() as sink:
        await harness.refresh(sink)
        counts = {metric.name: metric.value for metric in sink.metrics()}
    assert harness.in_topics(kafka) == harness.in_registry()
    assert counts["refresh_tombstones"] == 7  # also for the row that had one: it may have been a repetition
    assert counts["refresh_rows"] == 50 - 1 - 5 + 2 + 1


async def test_a_refresh_is_marked_and_its_rows_are_reads(harness: Harness, kafka: KafkaBroker) -> None:
    harness.registry.commit(*files(*range(2500)), make_row(LakeTable, id=1))
    async with harness.started(transaction_topic=True, partitions=1) as sink:
        await harness.refresh(sink)
    begin, end = (
        msgspec.json.decode(record.value) for record in read_topic(kafka.address, f"{harness.prefix}.transaction")
    )
    assert (begin["status"], end["status"], begin["id"], end["id"]) == ("BEGIN", "END", "snapshot:1", "snapshot:1")
    assert end["event_count"] == 2501
    records = read_topic(kafka.address, f"{harness.prefix}.table_files")
    envelopes = [msgspec.json.decode(record.value) for record in records]
    assert {envelope["op"] for envelope in envelopes} == {"r"}
    assert [envelope["source"]["snapshot"] for envelope in envelopes] == ["true"] * 2499 + ["last"]
    assert headers_of(records[0]) == {"table": "table_files", "operation": "READ", "position": "1", "epoch": "1"}


async def test_commits_during_a_refresh_are_delivered_after_it(harness: Harness, kafka: KafkaBroker) -> None:
    registry = harness.registry
    registry.commit(*files(*range(3000)))
    async with harness.started() as sink:
        sink.resume_at(registry.last, 1)
        refreshing = asyncio.create_task(sink.on_refresh(registry.snapshot()))
        await asyncio.sleep(0)
        later = [
            registry.commit(make_row(TableFile, id=1, file_path="new")),
            registry.commit(removed=files(2)),
            registry.commit(*files(5000)),
        ]
        await refreshing
        await deliver(sink, *later)
    assert harness.in_topics(kafka) == harness.in_registry()


async def test_a_refresh_is_repeated_after_a_crash_in_the_middle(
    harness: Harness, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = harness.registry
    async with harness.started() as sink:
        await harness.commit(sink, *files(*range(2000)))
    registry.commit(removed=files(*range(0, 2000, 3)))
    real, count = Outbox.send, 0

    def crash_later(self: Outbox, *arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count > 1200:
            raise RuntimeError("crash")
        real(self, *arguments, **options)

    async with harness.started() as sink:
        monkeypatch.setattr(Outbox, "send", crash_later)
        with pytest.raises(RuntimeError, match="crash"):
            await harness.refresh(sink)
        monkeypatch.setattr(Outbox, "send", real)
    registry.commit(removed=files(1))
    async with harness.started() as sink:
        await harness.refresh(sink)
    assert harness.in_topics(kafka) == harness.in_registry()


@pytest.mark.slow
async def test_a_refresh_with_little_room_in_flight(harness: Harness, kafka: KafkaBroker) -> None:
    harness.registry.commit(*files(*range(3000)))
    async with harness.started(max_in_flight_bytes=50_000) as sink:
        await harness.refresh(sink)
    assert harness.in_topics(kafka) == harness.in_registry()


@pytest.mark.slow
async def test_a_refresh_is_cancelled_promptly(harness: Harness) -> None:
    harness.registry.commit(*files(*range(5_000)))
    async with harness.started() as sink:
        sink.resume_at(harness.registry.last, 1)
        refreshing = asyncio.create_task(sink.on_refresh(harness.registry.snapshot()))
        await asyncio.sleep(0.05)
        refreshing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await refreshing
        await harness.refresh(sink)
