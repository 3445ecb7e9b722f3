"""One call at a time: which of them a cancellation interrupts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from components.kafka_sink.worker import Worker
from tests.waiting import DEADLINE_S, eventually


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker("test")
    yield found
    found.close()


class Call:
    """Runs until it is interrupted or released."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.began = threading.Event()
        self.released = threading.Event()
        self.interrupted = False

    def __call__(self) -> str:
        self.began.set()
        while not self.released.wait(0.002):
            if self.worker.interrupted():
                self.interrupted = True
                break
        return "done"


async def run(worker: Worker, call: Call) -> asyncio.Task[str]:
    task = asyncio.create_task(worker.run(call))
    await asyncio.sleep(0)
    return task


async def test_a_cancellation_interrupts_the_call(worker: Worker) -> None:
    call = Call(worker)
    task = await run(worker, call)
    await eventually(call.began.is_set, "the call")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, DEADLINE_S)
    assert call.interrupted


async def test_a_call_that_waits_is_cancelled_and_the_one_that_runs_is_not(worker: Worker) -> None:
    """As a delivery behind a heartbeat: the delivery must not begin after its caller was told that it has ended."""
    running, waiting = Call(worker), Call(worker)
    first = await run(worker, running)
    await eventually(running.began.is_set, "the first call")
    second = await run(worker, waiting)
    second.cancel()
    await asyncio.sleep(0)
    assert not worker.interrupted()
    running.released.set()
    assert await asyncio.wait_for(first, DEADLINE_S) == "done"
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(second, DEADLINE_S)
    assert not running.interrupted
    assert not waiting.began.is_set()


async def test_an_interruption_ends_with_its_call(worker: Worker) -> None:
    first = Call(worker)
    task = await run(worker, first)
    await eventually(first.began.is_set, "the first call")
    next_call = Call(worker)
    following = await run(worker, next_call)
    task.cancel()
    await eventually(next_call.began.is_set, "the second call")
    assert first.interrupted
    assert not worker.interrupted()
    next_call.released.set()
    assert await asyncio.wait_for(following, DEADLINE_S) == "done"


async def test_a_call_knows_that_another_one_waits(worker: Worker) -> None:
    call, another = Call(worker), Call(worker)
    first = await run(worker, call)
    await eventually(call.began.is_set, "the first call")
    assert not worker.awaited()
    second = await run(worker, another)
    assert worker.awaited()
    call.released.set()
    await eventually(another.began.is_set, "the second call")
    assert not worker.awaited()
    another.released.set()
    await asyncio.gather(first, second)


async def test_cleaning_up_happens_also_if_it_is_cancelled_before_it_began(worker: Worker) -> None:
    call = Call(worker)
    first = await run(worker, call)
    await eventually(call.began.is_set, "the first call")
    cleaned: list[bool] = []
    cleaning = asyncio.create_task(worker.clean_up(lambda: cleaned.append(worker.interrupted())))
    await asyncio.sleep(0)
    cleaning.cancel()
    call.released.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(cleaning, DEADLINE_S)
    assert cleaned == [False]


async def test_it_can_be_used_after_its_end(worker: Worker) -> None:
    assert await worker.run(lambda: 1) == 1
    worker.close()
    assert await worker.run(lambda: 2) == 2
