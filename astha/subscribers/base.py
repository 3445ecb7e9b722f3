"""`Component`: a base class for components, which says once which tables it reads and how it takes their events.

    class Indexer(Component):                      # event by event: one typed method for each kind of row
        durable = False

        @handles(Segment)
        async def segment(self, event: Event[Segment]) -> None: ...

    class Committer(Component):                    # whole transactions, or `on_transactions` for batches of them
        durable = True
        tables = (TableFile, TableStats)

        async def on_transaction(self, events: Sequence[Event[Row]]) -> None: ...

mypy refuses a handler whose event has another row type than the one it is registered for. A class that contradicts
itself is refused with a TypeError when it is defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from astha.events import Event
from astha.subscribers.contract import DELIVERIES, unknown_callback
from registry.contract import ConsistentRead
from registry.models import PUBLISHED, Row

S = TypeVar("S")
R = TypeVar("R", bound=Row)
Method: TypeAlias = Callable[[S, Event[R]], Awaitable[None]]

_MARK = "_astha_handles"


def handles(kind: type[R]) -> Callable[[Method[S, R]], Method[S, R]]:
    """Registers a method of a `Component` for all events of one row type."""

    def register(method: Method[S, R]) -> Method[S, R]:
        if not inspect.iscoroutinefunction(inspect.unwrap(method)):
            raise TypeError(f"{method.__qualname__} handles {kind.table}: declare it `async def`")
        setattr(method, _MARK, kind)
        return method

    return register


class Component:
    """Takes events by one of: `handles` methods, `on_event`, `on_transaction`, `on_transactions`.

    A subclass sets `durable`: False if its state ends with the process, so that the daemon refreshes it at every start
    before the first event; True if it resumes at its acknowledged position. `tables` lists the row types that it
    subscribes to, unless its handlers say so. `start`, `stop`, `metrics`, `problems`, `work`, `check` and
    `written_areas` are optional. Unless overridden, it is healthy and has nothing to refresh.
    """

    durable: ClassVar[bool]
    tables: ClassVar[tuple[type[Row], ...]] = ()
    _handlers: ClassVar[dict[type[Row], str]] = {}
    _methods: dict[type[Row], Callable[[Event[Row]], Awaitable[None]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        handlers: dict[type[Row], str] = {}
        for base in reversed(cls.__mro__[1:]):
            handlers |= vars(base).get("_handlers", {})
        for name, member in vars(cls).items():
            kind: type[Row] | None = getattr(member, _MARK, None)
            if kind is None:
                continue
            if handlers.get(kind, name) != name:
                raise TypeError(f"{cls.__name__} has two handlers for {kind.table}: {handlers[kind]} and {name}")
            handlers[kind] = name
        cls._handlers = handlers
        _require_consistent(cls)

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        component = super().__new__(cls)  # here, so that a subclass need not call `super().__init__()`
        component._methods = {kind: getattr(component, name) for kind, name in cls._handlers.items()}
        return component

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return frozenset(kind.table for kind in self.tables or self._handlers)

    async def on_event(self, event: Event[Row]) -> None:
        await self._methods[type(event.data)](event)

    async def on_health(self) -> bool:
        return True

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Components with state of their own override this."""


def _require_consistent(cls: type[Component]) -> None:
    if (problem := unknown_callback(cls, known=cls._handlers.values())) is not None:
        raise TypeError(problem)
    if not isinstance(cls.tables, tuple):
        raise TypeError(f"{cls.__name__}.tables is not a tuple of row types: write `tables = (Segment, Topic)`")
    for kind in (*cls.tables, *cls._handlers):
        if kind not in PUBLISHED:
            raise TypeError(f"{cls.__name__} subscribes to {kind!r}, which is not a published row type")
    if cls._handlers and cls.tables:
        raise TypeError(f"{cls.__name__} declares its tables twice: remove `tables`, its handlers say the same")
    taken = _deliveries(cls)
    if len(taken) > 1:
        raise TypeError(f"{cls.__name__} has {' and '.join(taken)}: the daemon would call only the last; keep one")


def require_complete(component: Component) -> None:
    """Raises TypeError, which says what to add, if a class lacks what a component must declare. Its bases may."""
    name = type(component).__name__
    if not hasattr(component, "durable"):
        raise TypeError(
            f"{name} does not say whether its state outlives the process: write `durable = False` to be refreshed at "
            "every start, or `durable = True` to resume at the acknowledged position"
        )
    if not component.subscribed_tables:
        raise TypeError(f"{name} subscribes to no table: write handlers, or `tables = (Segment, ...)`")
    if not _deliveries(type(component)):
        raise TypeError(f"{name} takes no events: write handlers, or one of {', '.join(DELIVERIES)}")


def _deliveries(cls: type[Component]) -> list[str]:
    own = [name for name in DELIVERIES if getattr(cls, name, None) not in (None, getattr(Component, name, None))]
    return ["@handles methods", *own] if cls._handlers else own
