from __future__ import annotations

import asyncio

import pytest

from astha.tasks import to_completion
from components.compactor.execution.cancellation import Cancellation, InputsChanged, JobStopped


class Work:
    def __init__(self, answer: Exception | None = None) -> None:
        self._answer = answer
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.cleaned = False

    async def run(self) -> str:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.cleaned = True
            if self._answer is not None:
                raise self._answer from None
            raise
        return "done"


async def test_work_that_is_not_stopped() -> None:
    cancellation, work = Cancellation(), Work()
    running = asyncio.create_task(cancellation.run(work.run(), ["a"]))
    await work.begun.wait()
    cancellation.input_changed("another's")
    work.go_on.set()
    assert await running == "done"


async def test_a_changed_input_stops_the_work_and_waits_for_its_end() -> None:
    cancellation, work = Cancellation(), Work()
    running = asyncio.create_task(cancellation.run(work.run(), ["a", "b"]))
    await work.begun.wait()
    cancellation.input_changed("b")
    with pytest.raises(InputsChanged) as changed:
        await running
    assert changed.value.paths == {"b"}
    assert work.cleaned


async def test_the_first_reason_to_stop_counts() -> None:
    cancellation, work = Cancellation(), Work()
    running = asyncio.create_task(cancellation.run(work.run(), []))
    await work.begun.wait()
    cancellation.stop("cancelled", "by request")
    cancellation.stop("aborted", "later")
    with pytest.raises(JobStopped, match="by request") as stopped:
        await running
    assert stopped.value.status == "cancelled"
    with pytest.raises(JobStopped):
        cancellation.check()


async def test_a_stopped_job_begins_nothing() -> None:
    cancellation, work = Cancellation(), Work()
    cancellation.stop("aborted", "before")
    with pytest.raises(JobStopped):
        await cancellation.run(work.run(), [])
    assert not work.begun.is_set()


async def test_an_error_of_the_cancelled_work_is_the_cause() -> None:
    cancellation, work = Cancellation(), Work(ValueError("still writing"))
    running = asyncio.create_task(cancellation.run(work.run(), []))
    await work.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await running
    assert isinstance(cancelled.value.__cause__, ValueError)


async def test_to_completion_is_not_cut_short() -> None:
    work = Work()
    running = asyncio.create_task(to_completion(work.run()))
    await work.begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    assert not work.cleaned
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not work.cleaned
