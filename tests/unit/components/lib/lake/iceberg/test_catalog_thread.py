"""Blocking calls on a thread: in order, with a time limit, and abandoned when they exceed it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from components.lib.lake.iceberg.catalog_thread import CallAbandoned, CatalogThread, call_with_timeout


async def test_a_call_returns_or_raises_what_the_work_does() -> None:
    thread = CatalogThread("test")

    def fail() -> None:
        raise LookupError("from the thread")

    assert await thread.call(lambda: 7) == 7
    with pytest.raises(LookupError, match="from the thread"):
        await thread.call(fail, timeout_s=30)
    await thread.close(timeout_s=30)


async def test_a_cancelled_call_ends_before_the_next_begins() -> None:
    thread, began, go_on = CatalogThread("test"), threading.Event(), threading.Event()
    steps: list[str] = []

    def first() -> None:
        began.set()
        go_on.wait()
        steps.append("first")

    call = asyncio.create_task(thread.call(first))
    await asyncio.to_thread(began.wait)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    second = asyncio.create_task(thread.call(lambda: steps.append("second")))
    go_on.set()
    await second
    assert steps == ["first", "second"]
    await thread.close(timeout_s=30)


async def test_an_abandoned_call_does_not_delay_later_ones() -> None:
    thread, go_on = CatalogThread("test"), threading.Event()
    with pytest.raises(CallAbandoned, match=r"within 0\.01 s") as abandoned:
        await thread.call(go_on.wait, timeout_s=0.01)
    assert await thread.call(lambda: "answered") == "answered"
    assert not abandoned.value.call.done()
    go_on.set()
    assert await abandoned.value.call is True
    await thread.close(timeout_s=30)


async def test_a_call_with_timeout_is_left_behind() -> None:
    go_on = threading.Event()
    with pytest.raises(TimeoutError):
        await call_with_timeout(go_on.wait, 0.01)
    go_on.set()
    assert await call_with_timeout(lambda: 7, 30) == 7
