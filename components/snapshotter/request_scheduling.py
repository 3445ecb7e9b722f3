"""Automatic snapshots: requests one for each table that is due, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import structlog

from components.snapshotter.table_state import TableStates, Trigger
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.errors import NotFound, RegistryError
from registry.models import TableSnapshot

log = structlog.get_logger(__name__)

Due: TypeAlias = "tuple[Trigger, str]"


class DueTables:
    """A queue of tables whose snapshot is to be requested; each is in it at most once."""

    def __init__(self, request: Callable[[int, Due], Awaitable[None]]) -> None:
        self._request = request
        self._waiting: dict[int, Due] = {}
        self.busy: set[int] = set()  # tables whose request is in flight
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, table_id: int, due: Due) -> None:
        self._waiting.setdefault(table_id, due)
        self._added.set()

    def clear(self) -> None:
        self._waiting.clear()

    async def work(self) -> None:
        """Makes one request after the other until cancelled. Run as many of these as may be in flight."""
        while True:
            while self._waiting:
                table_id = next(iter(self._waiting))
                due = self._waiting.pop(table_id)
                self.busy.add(table_id)
                try:
                    await self._request(table_id, due)
                except Exception:
                    log.exception("snapshot request failed unexpectedly", table_id=table_id)
                finally:
                    self.busy.discard(table_id)
            self._added.clear()
            await self._added.wait()


class RequestScheduler:
    """Requests snapshots of due tables. A table has at most one open request.

    The event of a request arrives after the request: until then its row id is kept here, so that a refresh, whose
    snapshot may be older than the request, does not lead to a second one.
    """

    def __init__(self, store: MetadataStore, clock: Clock, states: TableStates, retry_after_s: float) -> None:
        self._store = store
        self._clock = clock
        self._states = states
        self._retry_after_ms = int(retry_after_s * 1000)
        self._requested: dict[int, int] = {}  # by table: row id of the last request, until its event arrives
        self.due = DueTables(self._request)

    def replace_states(self, states: TableStates) -> None:
        """After a refresh."""
        self._states = states
        for table_id, row_id in list(self._requested.items()):
            state = states.get(table_id)
            if state is None or state.newest_row_id >= row_id:
                del self._requested[table_id]
            else:
                state.requesting = True

    def observe(self, row: TableSnapshot) -> None:
        """To be called for each event of `table_snapshots`."""
        if row.id >= self._requested.get(row.table_id, row.id + 1):
            del self._requested[row.table_id]

    def request_if_due(self, table_id: int) -> None:
        state = self._states.get(table_id)
        due = None if state is None else state.due(self._clock.now_ms(), self._retry_after_ms)
        if state is None or due is None or table_id in self.due.busy:
            return
        state.requesting = True
        self.due.add(table_id, due)

    def request_all_due(self) -> None:
        for table_id, _ in self._states:
            self.request_if_due(table_id)

    async def _request(self, table_id: int, due: Due) -> None:
        trigger, reason = due
        try:
            row = await self._store.request_snapshot(table_id, trigger=trigger, reason=reason)
        except NotFound:
            pass
        except RegistryError as error:
            if (state := self._states.get(table_id)) is not None:
                state.requesting = False
            log.warning("snapshot request failed", table_id=table_id, error=str(error))
        else:
            state = self._states.get(table_id)
            if state is not None and state.newest_row_id < row.id:
                state.requesting = True
                self._requested[table_id] = row.id
