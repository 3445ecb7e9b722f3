"""How a job is ended from outside, at any moment before its swap."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from contextlib import suppress
from typing import Literal, TypeAlias, TypeVar

T = TypeVar("T")

Ending: TypeAlias = Literal["aborted", "cancelled"]


class Ended(Exception):
    """The whole job is to end."""

    def __init__(self, status: Ending, reason: str) -> None:
        super().__init__(reason)
        self.status: Ending = status
        self.reason = reason


class Touched(Exception):
    """Somebody has removed or changed inputs: the rest may be planned again."""

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__(f"{len(paths)} of its files were removed or changed meanwhile")
        self.paths = frozenset(paths)


class Brake:
    """Pulled by events, by the heartbeat and by a stop; felt by whoever `drive`s."""

    def __init__(self) -> None:
        self._ending: Ended | None = None
        self._pulled = asyncio.Event()
        self.touched: set[str] = set()

    def end(self, status: Ending, reason: str) -> None:
        """The first reason counts."""
        if self._ending is None:
            self._ending = Ended(status, reason)
            self._pulled.set()

    def touch(self, path: str) -> None:
        """A file that may be one of the inputs is gone."""
        self.touched.add(path)
        self._pulled.set()

    def check(self, inputs: Collection[str] = ()) -> None:
        """Raise what there is to raise."""
        if self._ending is not None:
            raise Ended(self._ending.status, self._ending.reason)
        gone = self.touched.intersection(inputs)
        if gone:
            raise Touched(gone)

    async def drive(self, work: Coroutine[None, None, T], inputs: Collection[str]) -> T:
        """Until it is done, or until the brake is pulled for one of the inputs or for all: then the work is cancelled
        and waited for. What it raises in answer to that becomes the cause of what is raised here.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._pulled.clear()
                self.check(inputs)
                pulled = asyncio.ensure_future(self._pulled.wait())
                try:
                    await asyncio.wait({task, pulled}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    pulled.cancel()
        except BaseException as pulled_by:
            task.cancel()
            await settle(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise pulled_by from error
            raise
        return task.result()


async def settle(task: asyncio.Future[T]) -> None:
    """Wait for its end, however often the waiting is cancelled: what it does can't be left half done."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])


async def to_the_end(work: Coroutine[None, None, T]) -> T:
    """Not to be cancelled: a cancellation is raised when the work is over, and its error is the work's own."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await settle(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise
