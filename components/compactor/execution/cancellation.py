"""How a job is stopped from outside, at any moment before its swap."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from contextlib import suppress
from typing import Literal, TypeAlias, TypeVar

from astha.tasks import cancel_and_wait

T = TypeVar("T")

StopStatus: TypeAlias = Literal["aborted", "cancelled"]


class JobStopped(Exception):
    """The whole job is to stop."""

    def __init__(self, status: StopStatus, reason: str) -> None:
        super().__init__(reason)
        self.status: StopStatus = status
        self.reason = reason


class InputsChanged(Exception):
    """Inputs were removed or changed. The rest of the group may be planned again. Without ``paths``: rows of them were
    deleted.
    """

    def __init__(self, paths: Collection[str]) -> None:
        what = f"{len(paths)} of its files were removed or changed" if paths else "rows of its files were deleted"
        super().__init__(f"{what} meanwhile")
        self.paths = frozenset(paths)


class Cancellation:
    """Requested by events, by the heartbeat and by a stop of the compactor; takes effect in `run` and `check`."""

    def __init__(self) -> None:
        self._stopped: JobStopped | None = None
        self._requested = asyncio.Event()
        self.changed_inputs: set[str] = set()

    def stop(self, status: StopStatus, reason: str) -> None:
        """The first call counts."""
        if self._stopped is None:
            self._stopped = JobStopped(status, reason)
            self._requested.set()

    def input_changed(self, path: str) -> None:
        """A file was removed or changed that may be an input."""
        self.changed_inputs.add(path)
        self._requested.set()

    def check(self, inputs: Collection[str] = ()) -> None:
        """Raises `JobStopped`, or `InputsChanged` if one of ``inputs`` has changed."""
        if self._stopped is not None:
            raise JobStopped(self._stopped.status, self._stopped.reason)
        changed = self.changed_inputs.intersection(inputs)
        if changed:
            raise InputsChanged(changed)

    async def run(self, work: Coroutine[None, None, T], inputs: Collection[str]) -> T:
        """Returns the result of the work. If the job is stopped or one of ``inputs`` changes, cancels the work, waits
        for its end and raises as `check` does; an error of the cancelled work becomes the cause.
        """
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._requested.clear()
                self.check(inputs)
                requested = asyncio.ensure_future(self._requested.wait())
                try:
                    await asyncio.wait({task, requested}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    requested.cancel()
        except BaseException as reason:
            with suppress(asyncio.CancelledError):  # the reason to raise is known already
                await cancel_and_wait(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise reason from error
            raise
        return task.result()
