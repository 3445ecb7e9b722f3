"""The engine of a SQLite store, which reconnects when the file at the path is replaced.

When the path leads to another file, a new engine is created, and the old one is disposed of once its connections are
returned. The check costs one stat(2) per verb, about two microseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import AsyncAdaptedQueuePool, ConnectionPoolEntry

from registry.sqlite_connections import opened_file
from registry.sqlite_file import OpenFile

log = structlog.get_logger(__name__)

_POLL_S = 0.05


class ReconnectingEngine:
    def __init__(self, make: Callable[[], AsyncEngine]) -> None:
        self._make = make
        self._opened: OpenFile | None = None
        self._retiring: dict[asyncio.Task[None], AsyncEngine] = {}
        self._engine = self._make_engine()

    def current(self) -> AsyncEngine:
        """Returns the engine of the current file. Call it for each connection, in the event loop."""
        opened = self._opened
        if opened is not None and not opened.current:
            pool = _pool(self._engine)
            if pool.checkedin() + pool.checkedout():  # an open connection keeps the log's inode from being reused
                opened.set_aside_wal()
            log.warning("registry file replaced or removed, reconnecting", file=str(opened.path))
            task = asyncio.create_task(_retire(self._engine), name="retire registry engine")
            self._retiring[task] = self._engine
            task.add_done_callback(lambda done: self._retiring.pop(done, None))
            self._engine = self._make_engine()
        return self._engine

    async def dispose(self) -> None:
        for task, engine in list(self._retiring.items()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await engine.dispose()
        await self._engine.dispose()

    def _make_engine(self) -> AsyncEngine:
        engine = self._make()
        self._opened = None

        @event.listens_for(engine.sync_engine, "connect")
        def remember(_: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
            opened = opened_file(entry)
            if engine is self._engine and (self._opened is None or self._opened.identity == opened.identity):
                self._opened = opened  # also its log: a new one if all earlier connections were closed

        return engine


async def _retire(engine: AsyncEngine) -> None:
    pool = _pool(engine)
    while pool.checkedout():  # noqa: ASYNC110  (a pool has no event to wait for)
        await asyncio.sleep(_POLL_S)
    await engine.dispose()


def _pool(engine: AsyncEngine) -> AsyncAdaptedQueuePool:
    assert isinstance(engine.pool, AsyncAdaptedQueuePool)  # noqa: S101  (the pool of every async engine)
    return engine.pool
