"""Blocking calls that are waited for no longer than a time: a storage that hangs must not keep `verify` for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def within(limit_s: float, work: Callable[[], T]) -> T:
    """TimeoutError if it has not returned by then. Its thread is left behind, and does not keep the process."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if not result.done():
            result.set_exception(error) if error is not None else result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = work()
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, name="verify", daemon=True).start()
    async with asyncio.timeout(limit_s):
        return await result
