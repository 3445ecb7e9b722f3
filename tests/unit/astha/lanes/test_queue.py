from __future__ import annotations

from collections.abc import Sequence

import pytest

from astha.events import EventBatch, Transaction
from astha.lanes.queue import LaneQueue
from astha.testing import FakeRegistry, make_row
from registry.models import Segment


def transactions(sizes: Sequence[int]) -> list[Transaction]:
    """Returns transactions with so many events each."""
    registry = FakeRegistry()
    return [registry.commit(*(make_row(Segment, id=number) for number in range(size))) for size in sizes]


def queue_of(*batches: Sequence[Transaction]) -> LaneQueue:
    queue = LaneQueue(max_events=1_000_000, max_bytes=1 << 30)
    for batch in batches:
        assert queue.put(EventBatch.of(batch))
    return queue


def positions(batch: EventBatch) -> list[int]:
    return [transaction.position for transaction in batch.transactions]


@pytest.mark.parametrize("events", [1, 2, 3, 7, 256, 300, 10_000])
def test_heads_are_all_transactions_in_order(events: int) -> None:
    wanted = transactions([1, 1, 5, 2] * 200)
    queue = queue_of(wanted[:3], wanted[3:])
    taken: list[int] = []
    while queue:
        batch = queue.head(events)
        assert len(batch.events) <= events or len(batch.transactions) == 1
        assert batch.events == [event for transaction in batch.transactions for event in transaction.events]
        taken += positions(batch)
        queue.done()
    assert taken == [transaction.position for transaction in wanted]
    assert (queue.events, queue.size_bytes) == (0, 0)


def test_a_head_is_as_long_as_it_may_be() -> None:
    queue = queue_of(transactions([1] * 1000))
    assert len(queue.head(256).events) == 256
    queue = queue_of(transactions([1] * 1000))
    assert len(queue.head(600).events) == 600


def test_heads_of_one_transaction() -> None:
    wanted = transactions([3, 1, 2] * 100)
    queue = queue_of(wanted)
    for transaction in wanted:
        batch = queue.head_transaction()
        assert positions(batch) == [transaction.position]
        assert batch.events == transaction.events
        queue.done()
    assert not queue
    assert (queue.events, queue.size_bytes) == (0, 0)


def test_a_batch_is_divided_once_for_all_its_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the cost per transaction grows with the batch."""
    made: list[int] = []
    original = EventBatch.of

    def counted(transactions: Sequence[Transaction]) -> EventBatch:
        made.append(len(transactions))
        return original(transactions)

    monkeypatch.setattr(EventBatch, "of", counted)
    queue = queue_of(transactions([1] * 500))
    while queue:
        queue.head_transaction()
        queue.done()
    assert sum(made) == 500 + 500, "the batch itself, then each transaction once"


def test_gathering_joins_and_divides() -> None:
    wanted = transactions([2] * 50)
    queue = queue_of(*([transaction] for transaction in wanted[:10]), wanted[10:])
    assert len(queue.gather(30).events) == 20, "the next batch does not fit as a whole"
    queue.done()
    assert len(queue.gather(30).events) == 30
    queue.done()
    assert queue.events == 50
