"""`FakeRegistry` and `deliver` behave like a source and a lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from astha.subscribers import PUBLISHED, ConsumerGroup, Event, Operation, Row, Subscriber, TableFile, Topic
from astha.testing import FakeRegistry, RecordingSubscriber, deliver, make_context, make_row
from astha.testing.registry import key_of


def topic(name: str, partitions: int = 1) -> Topic:
    return make_row(Topic, name=name, partition_count=partitions)


def test_a_commit_returns_what_changed() -> None:
    registry = FakeRegistry()
    first = registry.commit(topic("a"), topic("b"))
    assert [(event.operation, event.before, event.index) for event in first.events] == [
        (Operation.INSERT, None, 0),
        (Operation.INSERT, None, 1),
    ]
    second = registry.commit(topic("a", 2), removed=[topic("b")])
    assert [(event.operation, event.before) for event in second.events] == [
        (Operation.UPDATE, topic("a")),
        (Operation.DELETE, topic("b")),
    ]
    assert second.position > first.position
    assert second.events[1].last


async def test_deliveries_and_a_refresh_lead_to_the_same_rows() -> None:
    registry, live, late = FakeRegistry(), RecordingSubscriber("topics"), RecordingSubscriber("topics")
    for transaction in (
        registry.commit(topic("a"), make_row(ConsumerGroup, group_id="g")),
        registry.commit(topic("b")),
        registry.commit(removed=[topic("a")]),
    ):
        await deliver(live, transaction)
    await late.on_refresh(registry.snapshot())
    assert live.rows == late.rows == {"topics": {("b",): topic("b")}}


async def test_a_snapshot_does_not_see_later_commits() -> None:
    registry = FakeRegistry()
    before = registry.commit(topic("a"))
    snapshot = registry.snapshot()
    after = registry.commit(topic("b"))
    assert await snapshot.count(Topic) == 1
    assert snapshot.visibility.contains(before.commit.transaction, before.position)
    assert not snapshot.visibility.contains(after.commit.transaction, after.position)


async def test_a_snapshot_reads_pages_and_single_tables() -> None:
    registry = FakeRegistry()
    registry.commit(*(make_row(TableFile, id=number, table_id=number % 2) for number in range(5)))
    pages = [page async for page in registry.snapshot().rows(TableFile, page=2)]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [row.id async for page in registry.snapshot().rows(TableFile, table_id=1) for row in page] == [1, 3]


class Calls:
    subscribed_tables = frozenset({"topics"})

    def __init__(self) -> None:
        self.calls: list[object] = []


class Transactions(Calls):
    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        self.calls.append([key_of(event.data) for event in events])


class Batches(Transactions):
    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        self.calls.append([[key_of(event.data) for event in events] for events in transactions])


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (Transactions, [[("a",), ("b",)], [("c",)]]),
        (Batches, [[[("a",), ("b",)], [("c",)]]]),
    ],
)
async def test_the_granularity_is_the_daemons(kind: type[Calls], calls: list[object]) -> None:
    registry, subscriber = FakeRegistry(), kind()
    other = make_row(ConsumerGroup, group_id="g")
    transactions = registry.commit(topic("a"), other, topic("b")), registry.commit(other), registry.commit(topic("c"))
    await deliver(cast("Subscriber", subscriber), *transactions)
    assert subscriber.calls == calls


async def test_a_subscriber_without_deliveries_is_named() -> None:
    with pytest.raises(TypeError, match="Calls has no on_event"):
        await deliver(cast("Subscriber", Calls()), FakeRegistry().commit(topic("a")))


@pytest.mark.parametrize("kind", PUBLISHED)
def test_every_row_type_can_be_made(kind: type[Row]) -> None:
    assert isinstance(make_row(kind), kind)
    assert make_row(kind).to_builtins()


def test_a_context_for_create() -> None:
    assert make_context().clock.now_ms() > 0
