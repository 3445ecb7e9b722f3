"""`InsertStream`: rows that arrive a few at a time, buffered into files of a sensible size.

async with manager.stream("shop.orders") as stream:
    async for rows in source:
        await stream.write(rows)
        ...
    await stream.flush()    # everything written so far is in the table
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from components.lib.storage_manager.buffers import Part, PartitionBuffers
from components.lib.storage_manager.errors import InsertError, RowsRefused
from components.lib.storage_manager.insert_result import InsertResult
from components.lib.storage_manager.row_conversion import Row
from components.lib.storage_manager.table_handles import TableHandle

if TYPE_CHECKING:
    from components.lib.storage_manager.manager import StorageManager


class InsertStream:
    """A partition's file is written when its rows are large enough or the oldest of them has waited long enough.

    Rows are in the table when `flush` has returned. After an error of the storage or the registry every call raises it:
    rows since the last flush may be missing. A call whose rows don't match the schema is refused as a whole, and the
    stream goes on. Leaving the block flushes, unless it is left by an error.
    """

    def __init__(self, manager: StorageManager, table: str | int) -> None:
        self._manager = manager
        self._settings = manager.settings
        self._table = table
        self._buffers: PartitionBuffers | None = None
        self._inserted: list[InsertResult] = []
        self._turn = asyncio.Lock()  # files are written in the order in which their rows came
        self._arrival = asyncio.Event()
        self._failure: BaseException | None = None
        self._abandoned = False
        self._rows = 0
        self._timer: asyncio.Task[None] | None = None

    @property
    def rows(self) -> int:
        """Returns the rows written so far, registered or buffered."""
        return self._rows

    async def __aenter__(self) -> Self:
        self._timer = asyncio.create_task(self._rotate_by_age(), name="rotation")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self._abandoned:
                await self.flush()
        finally:
            if self._timer is not None:
                self._timer.cancel()
                with suppress(asyncio.CancelledError):
                    await self._timer

    async def write(self, data: pa.Table | pa.RecordBatch | Sequence[Row]) -> None:
        """Returns when the rows are buffered and the files that became due are durable."""
        self._raise_failure()
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        async with self._turn:
            target, parts = await self._prepare(data)
            buffers = await self._buffers_of(target)
            due = buffers.add(parts, self._manager.clock.monotonic())
            self._rows += sum(table.num_rows for _, table in parts)
            self._arrival.set()
            await self._store(target, due)

    async def flush(self) -> None:
        """Returns when everything written so far is registered."""
        self._raise_failure()
        async with self._turn:
            if self._buffers is not None:
                await self._store(self._buffers.target, self._buffers.drain())
            inserted, self._inserted = self._inserted, []
        for one in inserted:
            try:
                await asyncio.shield(one.registered)
            except Exception as error:
                self._failure = error
                raise

    def abandon(self) -> None:
        """Leaving the block then writes nothing and raises nothing: for callers that have handled the error."""
        self._abandoned = True

    async def _prepare(self, data: pa.Table | Sequence[Row]) -> tuple[TableHandle, list[Part]]:
        target = await self._manager.target(self._table)
        try:
            return target, await self._manager.prepare(data, target, self._rows + 1)
        except RowsRefused:
            newest = await self._manager.target(self._table, fresh=True)
            if newest.schema.version == target.schema.version:
                raise
            return newest, await self._manager.prepare(data, newest, self._rows + 1)

    async def _buffers_of(self, target: TableHandle) -> PartitionBuffers:
        """A file never mixes rows of two schema versions."""
        before = self._buffers
        if before is not None and before.target.schema is target.schema and before.target.table.id == target.table.id:
            return before
        if before is not None:
            await self._store(before.target, before.drain())
        self._buffers = PartitionBuffers(target, self._settings.target_file_bytes, self._settings.buffer_bytes)
        return self._buffers

    async def _store(self, target: TableHandle, parts: list[Part]) -> None:
        if not parts:
            return
        try:
            inserted = await self._manager.store_files(target, parts)
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            self._failure = (
                InsertError("a write of this stream was cancelled: open another stream") if cancelled else error
            )
            raise
        self._inserted = [one for one in self._inserted if not _has_succeeded(one)]
        self._inserted.append(inserted)

    async def _rotate_by_age(self) -> None:
        """Sleeps until the oldest rows are due: rows that arrive meanwhile are younger."""
        clock = self._manager.clock
        while self._failure is None:
            oldest = self._buffers.oldest if self._buffers is not None else None
            if oldest is None:
                self._arrival.clear()
                await self._arrival.wait()
                continue
            wait = oldest + self._settings.rotate_after_s - clock.monotonic()
            if wait > 0:
                await clock.sleep(wait)
                continue
            async with self._turn:
                if self._buffers is not None:
                    due = self._buffers.due(clock.monotonic() - self._settings.rotate_after_s)
                    with suppress(Exception):  # `_store` keeps it for the next call
                        await self._store(self._buffers.target, due)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _has_succeeded(inserted: InsertResult) -> bool:
    outcome = inserted.registered
    if not outcome.done() or outcome.cancelled():
        return False
    observed, succeeded = outcome.observed, outcome.exception() is None
    outcome.observed = observed  # this look does not count
    return succeeded
