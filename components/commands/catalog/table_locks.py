"""Commits to one table in one process wait for each other; across processes the registry decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from components.commands.catalog.names import TableIdentity


class TableLocks:
    """Locks are granted in the order in which they were asked for. At most `limit` holders work at once."""

    def __init__(self, limit: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._locks: WeakValueDictionary[TableIdentity, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, tables: Iterable[TableIdentity]) -> AsyncIterator[None]:
        """The slot is taken last: a queue of commits to one table occupies one slot."""
        async with AsyncExitStack() as stack:
            for table in sorted(set(tables)):  # one order for all, so that no two wait for each other
                await stack.enter_async_context(self._locks.setdefault(table, asyncio.Lock()))
            await stack.enter_async_context(self._slots)
            yield
