"""The `Subscriber` protocol: what one writes to build a component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from astha.events import Event
from registry.areas import Area
from registry.contract import ConsistentRead
from registry.models import Row


class Subscriber(Protocol):
    """Calls come one at a time, from one event loop. Whatever is raised is the component's own trouble:
    others don't notice. `CancelledError` must propagate: a delivery that takes longer than its timeout is cancelled.
    """

    @property
    def subscribed_tables(self) -> frozenset[str]:
        """Must equal what subscriptions.yaml says."""
        ...

    async def on_event(self, event: Event[Row]) -> None:
        """Order: the registry's commit order over all subscribed tables. Duplicates: possible after a crash or a
        retry, never after a refresh that contains the event. Errors: retried, at most 30 times, then the event is
        dropped and a refresh follows.
        """
        ...

    async def on_health(self) -> bool:
        """Whether deliveries would work now. False, an error or no answer in time opens the circuit breaker."""
        ...

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Make the component's state that of the snapshot. Events that it contains are not delivered afterwards,
        those after it are. May be called again if it fails.
        """
        ...


@runtime_checkable
class TransactionSubscriber(Protocol):
    """Optional: to see all of a commit's events together. Retried as a whole."""

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None: ...


@runtime_checkable
class BatchSubscriber(Protocol):
    """Optional, instead of `on_transaction`: to see everything that waits, for components that commit at a price."""

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        """Whole transactions, in order, at least one. Nothing waits for more to come. Retried as a whole; what comes
        again after a crash may be divided otherwise.
        """
        ...


@runtime_checkable
class RegistryWriter(Protocol):
    """Optional: the areas of the registry that the component writes to. `astha check` looks whether the role may."""

    @property
    def written_areas(self) -> frozenset[Area]: ...


@runtime_checkable
class InMemory(Protocol):
    """Optional: ``durable = False`` says that the component's state ends with the process.

    The daemon then refreshes it at every start, before the first event. A component that says nothing is durable: it
    goes on from its acknowledged position, so its effect is kept with that position, or recognises a repetition.
    """

    durable: bool


def is_durable(subscriber: Subscriber) -> bool:
    return subscriber.durable if isinstance(subscriber, InMemory) else True


@runtime_checkable
class Startable(Protocol):
    """Optional: called before the first delivery. An error is retried like a failed refresh, and it may take as long
    as one. It does not read the registry's rows: that is what `on_refresh` is for, see `InMemory`.
    """

    async def start(self) -> None: ...


@runtime_checkable
class Stoppable(Protocol):
    """Optional: called after the last delivery, also when start failed."""

    async def stop(self) -> None: ...
