"""One daemon, three granularities: events, whole transactions and batches, with and without the base class."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from astha.subscribers import Component, ConsistentRead, Event, Partition, Row, Topic, handles
from astha.testing.registry import key_of
from registry.contract import MetadataStore
from tests.fixtures.daemons import RunDaemon
from tests.fixtures.stores import OpenStore


class ByEvent(Component):
    durable = False

    def __init__(self) -> None:
        self.calls: list[list[object]] = []

    @handles(Topic)
    async def topic(self, event: Event[Topic]) -> None:
        self.calls.append([key_of(event.data)])

    @handles(Partition)
    async def partition(self, event: Event[Partition]) -> None:
        self.calls.append([key_of(event.data)])


class ByTransaction(Component):
    durable = False
    tables = (Topic, Partition)

    def __init__(self) -> None:
        self.calls: list[list[object]] = []

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        self.calls.append([key_of(event.data) for event in events])


class Bare:
    """No base class, and no `on_event`."""

    subscribed_tables = frozenset({"topics", "partitions"})

    def __init__(self) -> None:
        self.calls: list[list[object]] = []

    async def on_health(self) -> bool:
        return True

    async def on_refresh(self, snapshot: ConsistentRead) -> None: ...


class BareTransactions(Bare):
    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        self.calls.append([key_of(event.data) for event in events])


class BareBatches(Bare):
    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        self.calls += [[key_of(event.data) for event in events] for events in transactions]


@pytest.fixture
async def store(url: str, opened: OpenStore) -> MetadataStore:
    return await opened(url)


async def test_each_component_is_called_at_its_granularity(
    url: str, store: MetadataStore, run_daemon: RunDaemon
) -> None:
    single, whole, bare, batches = ByEvent(), ByTransaction(), BareTransactions(), BareBatches()
    running = await run_daemon(url, {"single": single, "whole": whole, "bare": bare, "batches": batches})
    await running.live()
    for name in ("a", "b"):
        await store.create_topic(name, 2)
    wanted: list[list[object]] = [[(name,), (name, 0), (name, 1)] for name in ("a", "b")]
    for subscriber in (whole, bare, batches):
        await running.until(lambda calls=subscriber.calls: calls == wanted, type(subscriber).__name__)  # type: ignore[misc]
    events = [[key] for keys in wanted for key in keys]
    await running.until(lambda: single.calls == events, "event by event")
    await running.stop()
