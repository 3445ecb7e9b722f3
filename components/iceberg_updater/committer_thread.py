"""A committer and the thread that its calls run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import structlog

from components.iceberg_updater.committer import Committer
from components.lib.lake.iceberg import IcebergTables, Retention, TableUnavailable, with_mapped_errors
from components.lib.lake.iceberg.catalog_thread import CallAbandoned, CatalogThread
from components.lib.lake.table_lookup import full_name
from registry.models import LakeTable

log = structlog.get_logger(__name__)

T = TypeVar("T")


class CommitterThread:
    """A call for one table that exceeds its time limit is abandoned with its thread and its committer, which commits
    nothing more; later calls use a new thread and a new committer.
    """

    def __init__(
        self, name: str, tables: IcebergTables, retention: Retention, timeout_s: float, probe_timeout_s: float
    ) -> None:
        self._thread = CatalogThread(name)
        self._retention = retention
        self._timeout_s = timeout_s
        self._probe_timeout_s = probe_timeout_s
        self._abandoned: dict[int, asyncio.Future[Any]] = {}
        self.committer = Committer(tables, retention)

    def is_hanging(self, table_id: int) -> bool:
        """Whether an abandoned call for this table still runs."""
        call = self._abandoned.get(table_id)
        if call is not None and call.done():
            del self._abandoned[table_id]
        return table_id in self._abandoned

    async def call(self, work: Callable[[], T], *, table: LakeTable | None = None, probe: bool = False) -> T:
        """Calls for a table have a time limit, a shorter one for a `probe`; calls without a table have none.

        Raises `CatalogUnavailable` as `with_mapped_errors` does, and `TableUnavailable` if the call exceeds its limit.
        """
        timeout_s = None if table is None else self._probe_timeout_s if probe else self._timeout_s
        try:
            return await self._thread.call(partial(with_mapped_errors, work), timeout_s=timeout_s)
        except CallAbandoned as abandoned:
            assert table is not None  # noqa: S101  (only calls for a table have a limit)
            self._abandoned[table.id] = abandoned.call
            self.committer = Committer(self.committer.tables.retired(), self._retention)
            log.error("catalog call abandoned", table=full_name(table), timeout_s=timeout_s)
            raise TableUnavailable(
                f"{full_name(table)}: its storage has not answered within {timeout_s:g} s"
            ) from abandoned

    async def close(self) -> None:
        """Waits for the call in flight, at most as long as for a probe."""
        await self._thread.close(self._probe_timeout_s)
