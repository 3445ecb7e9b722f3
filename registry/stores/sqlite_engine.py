"""The engine of a SQLite store: over the file that the path leads to now.

When another file has taken its place, a new engine is made, and the old one is disposed of once its connections have
come back. Looking costs one stat(2) for each verb, about two microseconds.
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

_LOOK_S = 0.05


class FileEngine:
    def __init__(self, make: Callable[[], AsyncEngine]) -> None:
        self._make = make
        self._opened: OpenFile | None = None
        self._retiring: dict[asyncio.Task[None], AsyncEngine] = {}
        self._engine = self._made()

    def current(self) -> AsyncEngine:
        """To be asked for each connection, in the event loop."""
        opened = self._opened
        if opened is not None and not opened.current:
            pool = _pool(self._engine)
            if pool.checkedin() + pool.checkedout():  # while one is open, no other log has the inode of its log
                opened.set_aside_wal()
            log.warning("the registry's file was replaced or removed: reconnecting", file=str(opened.path))
            task = asyncio.create_task(_retire(self._engine), name="registry engine of a file that is gone")
            self._retiring[task] = self._engine
            task.add_done_callback(lambda done: self._retiring.pop(done, None))
            self._engine = self._made()
        return self._engine

    async def dispose(self) -> None:
        for task, engine in list(self._retiring.items()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await engine.dispose()
        await self._engine.dispose()

    def _made(self) -> AsyncEngine:
        engine = self._make()
        self._opened = None

        @event.listens_for(engine.sync_engine, "connect")
        def note(_: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
            opened = opened_file(entry)
            if engine is self._engine and (self._opened is None or self._opened.identity == opened.identity):
                self._opened = opened  # its log is another one, if all connections before it were closed

        return engine


async def _retire(engine: AsyncEngine) -> None:
    pool = _pool(engine)
    while pool.checkedout():  # noqa: ASYNC110  (a pool has no event for it)
        await asyncio.sleep(_LOOK_S)
    await engine.dispose()


def _pool(engine: AsyncEngine) -> AsyncAdaptedQueuePool:
    assert isinstance(engine.pool, AsyncAdaptedQueuePool)  # noqa: S101  (that of an asynchronous engine)
    return engine.pool
