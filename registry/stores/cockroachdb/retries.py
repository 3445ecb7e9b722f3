"""Repeats verbs: CockroachDB is serializable, so a transaction may fail because of others, and is then repeated.

A transaction that failed has written nothing (`registry.stores.cockroachdb.transactions` makes sure of it), so a verb
can be repeated from its beginning: it reads and decides again. The client repeats, with exponential backoff and full
jitter: callers that met once don't meet again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from registry.contract import MetadataStore
from registry.errors import Unavailable

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S")


class TransactionFailed(Unavailable):
    """Nothing was written, and the transaction can be repeated."""


class Retries(msgspec.Struct, frozen=True):
    """Gives up after so many attempts, but not before so long: a busy row needs time, a slow machine attempts."""

    attempts: int = 30
    within_s: float = 30.0
    first_s: float = 0.01
    longest_s: float = 1.0

    def delay_s(self, failures: int) -> float:
        """Full jitter: anything up to the limit, which doubles with every failure."""
        return random.uniform(0, min(self.longest_s, self.first_s * 2 ** (failures - 1)))  # noqa: S311  (no secret)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats the call while it raises TransactionFailed. After the last attempt, raises Unavailable."""
        failures, began = 0, time.monotonic()
        while True:
            try:
                return await call()
            except TransactionFailed as error:
                failures += 1
                if failures >= self.attempts and time.monotonic() - began >= self.within_s:
                    raise Unavailable(f"{error} ({failures} attempts)") from error
                await asyncio.sleep(self.delay_s(failures))


_verb: ContextVar[str | None] = ContextVar("verb", default=None)


def current_verb() -> str | None:
    """The outermost verb of this task, which will be repeated."""
    return _verb.get()


def repeated(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A verb that is repeated as a whole; a verb inside another is not repeated by itself."""

    @wraps(verb)
    async def run(store: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if _verb.get() is not None:
            return await verb(store, *args, **kwargs)
        token = _verb.set(verb.__name__)
        try:
            retries: Retries = store.retries
            return await retries.run(lambda: verb(store, *args, **kwargs))
        finally:
            _verb.reset(token)

    return run


def repeat_verbs(store: type[S]) -> type[S]:
    """Decorates a store: every verb that is a coroutine is repeated."""
    for name in dir(MetadataStore):
        verb = getattr(store, name, None)
        if not name.startswith("_") and name != "close" and iscoroutinefunction(verb):
            setattr(store, name, repeated(verb))
    return store
