"""A comfortable base for components: one typed method for each kind of row.

    class Indexer(Component):
        @handles(Segment)
        async def segment(self, event: Event[Segment]) -> None: ...

mypy refuses a handler whose event is of another row than it is registered for.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias, TypeVar

from astha.events import Event
from registry.contract import ConsistentRead
from registry.models import Row

S = TypeVar("S")
R = TypeVar("R", bound=Row)
Method: TypeAlias = Callable[[S, Event[R]], Awaitable[None]]

_MARK = "_astha_handles"


def handles(kind: type[R]) -> Callable[[Method[S, R]], Method[S, R]]:
    """Register a method of a `Component` for all events of one kind of row."""

    def register(method: Method[S, R]) -> Method[S, R]:
        if not inspect.iscoroutinefunction(inspect.unwrap(method)):
            raise TypeError(f"{method.__qualname__} handles {kind.table}: declare it `async def`")
        setattr(method, _MARK, kind)
        return method

    return register


class Component:
    """Dispatches `on_event` to the `handles` methods; healthy and nothing to refresh unless overridden."""

    _handlers: ClassVar[dict[type[Row], str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        handlers = dict(cls._handlers)
        for name, member in vars(cls).items():
            kind: type[Row] | None = getattr(member, _MARK, None)
            if kind is None:
                continue
            if handlers.get(kind, name) != name:
                raise TypeError(f"{cls.__name__} has two handlers for {kind.table}: {handlers[kind]} and {name}")
            handlers[kind] = name
        cls._handlers = handlers

    def __init__(self) -> None:
        self._methods: dict[type[Row], Callable[[Event[Row]], Awaitable[None]]] = {
            kind: getattr(self, name) for kind, name in self._handlers.items()
        }

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return frozenset(kind.table for kind in self._handlers)

    async def on_event(self, event: Event[Row]) -> None:
        await self._methods[type(event.data)](event)

    async def on_health(self) -> bool:
        return True

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Components with state of their own override this."""
