"""`FaultInjector`: a component of one's own that misbehaves on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from astha.errors import Reject
from astha.subscribers import (
    BatchSubscriber,
    Component,
    ConsistentRead,
    Event,
    EventSubscriber,
    Metric,
    ReportsMetrics,
    Row,
    Startable,
    Topic,
    TransactionSubscriber,
    handles,
)
from astha.subscribers.contract import is_durable
from astha.testing import FakeRegistry, Fault, FaultInjector, deliver, make_row


class Base(Component):
    durable = False

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def start(self) -> None:
        self.seen.append("start")

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        self.seen.append("refresh")

    def metrics(self) -> Iterator[Metric]:
        yield Metric("seen", "Calls.", len(self.seen))

    def note(self, event: Event[Row]) -> None:
        assert isinstance(event.data, Topic)
        self.seen.append(event.data.name)


class Single(Base):
    @handles(Topic)
    async def topic(self, event: Event[Topic]) -> None:
        self.note(event)


class Whole(Base):
    tables = (Topic,)

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        for event in events:
            self.note(event)


class Batches(Base):
    tables = (Topic,)

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        for events in transactions:
            for event in events:
                self.note(event)


@pytest.mark.parametrize("make", [Single, Whole, Batches])
async def test_a_fault_hits_so_many_deliveries(make: Callable[[], Base]) -> None:
    component = make()
    faulty = FaultInjector(component)
    transaction = FakeRegistry().commit(make_row(Topic, name="a"))
    faulty.misbehave(Fault.FAIL, times=1)
    with pytest.raises(RuntimeError, match="failed"):
        await deliver(faulty, transaction)
    assert component.seen == []
    faulty.misbehave(Fault.FAIL_AFTER_EFFECT, times=1)
    with pytest.raises(RuntimeError, match="failed after the effect"):
        await deliver(faulty, transaction)
    await deliver(faulty, transaction)
    assert component.seen == ["a", "a"]
    assert faulty.hits == 2


async def test_a_rejected_event_and_a_failing_refresh() -> None:
    component = Single()
    faulty, registry = FaultInjector(component), FakeRegistry()
    faulty.misbehave(Fault.REJECT)
    with pytest.raises(Reject):
        await deliver(faulty, registry.commit(make_row(Topic, name="a")))
    faulty.refresh_error = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        await faulty.on_refresh(registry.snapshot())
    faulty.behave()
    await faulty.on_refresh(registry.snapshot())
    assert component.seen == ["refresh"]


async def test_it_is_to_the_daemon_what_the_component_is() -> None:
    protocols = (EventSubscriber, TransactionSubscriber, BatchSubscriber)
    for number, make in enumerate((Single, Whole, Batches)):
        faulty = FaultInjector(make())
        assert [index for index, protocol in enumerate(protocols) if isinstance(faulty, protocol)] == [number]
    single = FaultInjector(Single())
    assert single.subscribed_tables == {"topics"}
    assert not is_durable(single)
    assert isinstance(single, Startable)
    await single.start()
    assert isinstance(single, ReportsMetrics)
    assert [metric.value for metric in single.metrics()] == [1]
    assert await single.on_health() is True

    async def unwell() -> bool:
        return False

    single.health = unwell
    assert await single.on_health() is False
