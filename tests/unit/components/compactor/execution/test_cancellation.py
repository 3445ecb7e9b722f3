from __future__ import annotations

import asyncio

import pytest

from components.compactor.execution.cancellation import Brake, Ended, Touched, to_the_end


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


async def test_work_that_nobody_stops() -> None:
    brake, work = Brake(), Work()
    driving = asyncio.create_task(brake.drive(work.run(), ["a"]))
    await work.begun.wait()
    brake.touch("another's")
    work.go_on.set()
    assert await driving == "done"


async def test_a_touched_input_stops_it_and_waits_for_its_end() -> None:
    brake, work = Brake(), Work()
    driving = asyncio.create_task(brake.drive(work.run(), ["a", "b"]))
    await work.begun.wait()
    brake.touch("b")
    with pytest.raises(Touched) as touched:
        await driving
    assert touched.value.paths == {"b"}
    assert work.cleaned


async def test_the_first_reason_to_end_counts() -> None:
    brake, work = Brake(), Work()
    driving = asyncio.create_task(brake.drive(work.run(), []))
    await work.begun.wait()
    brake.end("cancelled", "by request")
    brake.end("aborted", "later")
    with pytest.raises(Ended, match="by request") as ended:
        await driving
    assert ended.value.status == "cancelled"
    with pytest.raises(Ended):
        brake.check()


async def test_nothing_is_begun_with_the_brake_pulled() -> None:
    brake, work = Brake(), Work()
    brake.end("aborted", "before")
    with pytest.raises(Ended):
        await brake.drive(work.run(), [])
    assert not work.begun.is_set()


async def test_what_the_work_says_of_its_cancellation_is_the_cause() -> None:
    brake, work = Brake(), Work(ValueError("still writing"))
    driving = asyncio.create_task(brake.drive(work.run(), []))
    await work.begun.wait()
    driving.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await driving
    assert isinstance(cancelled.value.__cause__, ValueError)


async def test_to_the_end_is_not_to_be_cancelled() -> None:
    work = Work()
    running = asyncio.create_task(to_the_end(work.run()))
    await work.begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    assert not work.cleaned
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not work.cleaned
