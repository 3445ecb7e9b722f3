from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 30.0


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], what: str, deadline_s: float = DEADLINE_S
) -> None:
    """Waits until the condition holds; fails with its name if it never does."""
    end = time.monotonic() + deadline_s
    while True:
        answer = condition()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}")
        await asyncio.sleep(0.005)


def eventually_now(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """`eventually` for tests without a loop."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.005)
