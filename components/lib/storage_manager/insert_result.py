"""The result of an insert: its files, and the outcome of their registration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import structlog

from registry.inputs import FileDraft
from registry.models import TableFile, TableInsert

log = structlog.get_logger(__name__)


class RegistrationFuture(asyncio.Future[list[TableFile]]):
    """The rows of the registered files, or why there are none.

    Remembers whether its result was looked at, and calls ``commit_now`` when a caller begins to wait.
    """

    def __init__(self, commit_now: Callable[[], None]) -> None:
        super().__init__()
        self.observed = False
        self._commit_now = commit_now

    def __await__(self) -> Generator[Any, None, list[TableFile]]:
        self.observed = True
        self._commit_now()
        return super().__await__()

    def add_done_callback(self, fn: Callable[..., object], *, context: Context | None = None) -> None:
        self._commit_now()
        super().add_done_callback(fn, context=context)

    def result(self) -> list[TableFile]:
        self.observed = True
        return super().result()

    def exception(self) -> BaseException | None:
        self.observed = True
        return super().exception()


@dataclass(frozen=True, slots=True)
class InsertResult:
    """The files are durable. ``registered`` is done when they are registered, or removed after a failure."""

    table_id: int
    schema_version: int
    files: Sequence[FileDraft]
    registered: RegistrationFuture
    repeated: TableInsert | None = None  # the insert with the same id that was made before; then there are no files

    @property
    def rows(self) -> int:
        return sum(file.row_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.file_size for file in self.files)


class PendingInserts:
    """Inserts whose registration is in progress, and failures that no caller has seen."""

    def __init__(self) -> None:
        self._open: set[asyncio.Future[None]] = set()
        self._undoing: set[asyncio.Task[None]] = set()
        self._failed: list[RegistrationFuture] = []

    def follow(
        self,
        inserted: InsertResult,
        result: asyncio.Future[list[TableFile]],
        undo: Callable[[BaseException], Coroutine[None, None, None]],
    ) -> None:
        """After a failed registration, calls `undo` before the error is passed on."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open.add(settled)
        settled.add_done_callback(self._open.discard)

        def done(result: asyncio.Future[list[TableFile]]) -> None:
            error = asyncio.CancelledError() if result.cancelled() else result.exception()
            if error is None:
                if not inserted.registered.done():  # the caller may have cancelled it
                    inserted.registered.set_result(result.result())
                settled.set_result(None)
            else:
                undoing = asyncio.create_task(fail(error))
                self._undoing.add(undoing)
                undoing.add_done_callback(self._undoing.discard)

        async def fail(error: BaseException) -> None:
            try:
                await undo(error)
            finally:
                log.error("insert could not be registered", table_id=inserted.table_id, error=str(error))
                if not inserted.registered.done():
                    inserted.registered.set_exception(error)
                    self._failed.append(inserted.registered)
                settled.set_result(None)

        result.add_done_callback(done)

    async def settled(self) -> None:
        while self._open:
            await asyncio.wait(set(self._open))

    def raise_unobserved(self) -> None:
        """Raises the first failure that no caller has seen; forgets the others."""
        failed, self._failed = self._failed, []
        for outcome in failed:
            if not outcome.observed and (error := outcome.exception()) is not None:
                raise error
