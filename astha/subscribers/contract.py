"""The protocols of a component. `Subscriber` is required, with one of `EventSubscriber`, `TransactionSubscriber` and
`BatchSubscriber`; everything else is optional. `astha.subscribers.Component` is a base class that fits them all.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Protocol, runtime_checkable

from astha.events import Event
from registry.areas import Area
from registry.contract import ConsistentRead
from registry.models import Row
from registry.position import Position

DELIVERIES = ("on_event", "on_transaction", "on_transactions")
"""The daemon calls the last of these that a component has."""

CALLBACKS = (*DELIVERIES, "on_health", "on_refresh")
"""Every `on_*` method that the daemon calls."""


class Subscriber(Protocol):
    """Calls come one at a time, from one event loop. An error affects this component only: no other notices it.
    `CancelledError` must propagate: a delivery that takes longer than its timeout is cancelled.
    """

    @property
    def subscribed_tables(self) -> frozenset[str]:
        """Must equal the tables of its entry in subscriptions.yaml."""
        ...

    async def on_health(self) -> bool:
        """Returns whether deliveries would work now. False, an error or a timeout opens the circuit breaker."""
        ...

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Replaces the component's state by that of the snapshot. Events that the snapshot contains are not delivered
        afterwards, later ones are. Called again if it fails.
        """
        ...


@runtime_checkable
class EventSubscriber(Protocol):
    """Takes one event at a time."""

    async def on_event(self, event: Event[Row]) -> None:
        """Order: the registry's commit order over all subscribed tables. Duplicates: possible after a crash or a
        retry, never after a refresh that contains the event. Errors: retried, at most 30 times, then the event is
        dropped and a refresh follows.
        """
        ...


@runtime_checkable
class TransactionSubscriber(Protocol):
    """Takes all subscribed events of a commit together; `on_event` is then not called."""

    async def on_transaction(self, events: Sequence[Event[Row]]) -> None:
        """At least one event, in order. Retried as a whole."""
        ...


@runtime_checkable
class BatchSubscriber(Protocol):
    """Takes everything that is queued, for components whose commits are expensive; the two others are not called."""

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        """Whole transactions, in order, at least one. The daemon never waits to fill a batch. Retried as a whole;
        after a crash the same transactions may come in other batches.
        """
        ...


@runtime_checkable
class RegistryWriter(Protocol):
    """Optional: the areas of the registry that the component writes to. `astha check` tests the role's privileges."""

    @property
    def written_areas(self) -> frozenset[Area]: ...


@runtime_checkable
class InMemory(Protocol):
    """Optional: ``durable = False`` says that the component's state ends with the process.

    The daemon then refreshes it at every start, before the first event. Without it a component is durable: it resumes
    at its acknowledged position, so it stores its effect and the position in one step, or recognises duplicates.
    """

    durable: bool


def is_durable(subscriber: Subscriber) -> bool:
    return subscriber.durable if isinstance(subscriber, InMemory) else True


@runtime_checkable
class Startable(Protocol):
    """Optional: called before the first delivery. An error is retried like a failed refresh, and `start` may take as
    long as one. It does not read the registry's rows: `on_refresh` does, see `InMemory`.
    """

    async def start(self) -> None: ...


@runtime_checkable
class Stoppable(Protocol):
    """Optional: called after the last delivery, also when start failed."""

    async def stop(self) -> None: ...


@runtime_checkable
class ResumesAtPosition(Protocol):
    """Optional: for a component that sends positions on, such as a sink for followers."""

    def resume_at(self, position: Position, epoch: int) -> None:
        """Called after `start` and before each `on_refresh`: all later deliveries have positions above this one. The
        epoch is that of the daemon's lease, and increases with every change of leader. Must not block.
        """
        ...


def unknown_callback(component: object, known: Collection[str] = ()) -> str | None:
    """Returns what is wrong if the class or object has an `on_*` method that the daemon never calls, such as a typo."""
    name_of = component.__name__ if isinstance(component, type) else type(component).__name__
    for name in dir(component):
        if not name.startswith("on_") or name in CALLBACKS or name in known:
            continue
        member = inspect.getattr_static(component, name)
        if not callable(member) and not isinstance(member, classmethod):
            continue
        near = get_close_matches(name, CALLBACKS, n=1, cutoff=0)[0]
        return f"{name_of} has a method `{name}`, which the daemon never calls: did you mean `{near}`?"
    return None
