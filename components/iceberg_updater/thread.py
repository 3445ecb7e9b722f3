"""A thread for PyIceberg, which blocks: calls one after the other, none of them for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from components.iceberg_updater.committer import Committer
from components.lib.lake.iceberg import IcebergTables, Retention, TableUnavailable, with_mapped_errors
from registry.models import LakeTable

log = structlog.get_logger(__name__)

T = TypeVar("T")


class IcebergThread:
    """A committer and the thread that its calls are made in.

    A call that was cancelled is finished before the next one begins. A call for one table that takes longer than its
    limit is left behind with its thread and its committer, which commits nothing more; later calls get new ones.
    """

    def __init__(self, name: str, tables: IcebergTables, retention: Retention, limit_s: float, brief_s: float) -> None:
        self._name = name
        self._retention = retention
        self._limit_s = limit_s
        self._brief_s = brief_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._hanging: dict[int, asyncio.Future[object]] = {}
        self.committer = Committer(tables, retention)

    def hangs(self, table_id: int) -> bool:
        """Whether a call for this table was left behind and has not come back."""
        call = self._hanging.get(table_id)
        if call is not None and call.done():
            del self._hanging[table_id]
        return table_id in self._hanging

    async def call(self, work: Callable[[], T], *, table: LakeTable | None = None, brief: bool = False) -> T:
        """CatalogUnavailable if the catalog fails; TableUnavailable if a call for this table does not come back."""
        call = asyncio.get_running_loop().run_in_executor(self._pool, with_mapped_errors, work)
        if table is None:
            return await call
        limit_s = self._brief_s if brief else self._limit_s
        try:
            done, _ = await asyncio.wait({call}, timeout=limit_s)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if done:
            return call.result()
        self._leave_behind(table, call)
        raise TableUnavailable(f"{table.database}.{table.name}: its storage has not answered within {limit_s:g} s")

    def _leave_behind(self, table: LakeTable, call: asyncio.Future[T]) -> None:
        call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._hanging[table.id] = call  # type: ignore[assignment]  # only asked whether it is done
        self._pool.shutdown(wait=False)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self.committer = Committer(self.committer.tables.retired(), self._retention)
        log.error("a call for a table has not come back, and is left behind", table=f"{table.database}.{table.name}")

    async def close(self) -> None:
        """Once the call under way has ended, or has not within a short time."""
        last = asyncio.get_running_loop().run_in_executor(self._pool, int)
        await asyncio.wait({last}, timeout=self._brief_s)
        self._pool.shutdown(wait=False)
