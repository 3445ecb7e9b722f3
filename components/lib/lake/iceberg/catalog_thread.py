"""Blocking catalog and storage calls, away from the event loop and with a time limit.

PyIceberg blocks, and storage that hangs does not return at all. `CatalogThread` serves components, `call_with_timeout`
serves commands.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class CallAbandoned(Exception):
    """The call exceeded its time limit and still runs, on a thread that no later call uses."""

    def __init__(self, call: asyncio.Future[Any], timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s")
        self.call = call


class CatalogThread:
    """One thread; calls run one after the other, and a cancelled call ends before the next one begins.

    A call that exceeds its time limit is abandoned together with its thread; later calls get a new thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def call(self, work: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Returns or raises what `work` does. Raises `CallAbandoned` after `timeout_s`, time in the queue included."""
        pool = self._pool
        call = asyncio.get_running_loop().run_in_executor(pool, work)
        try:
            done, _ = await asyncio.wait({call}, timeout=timeout_s)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if done:
            return call.result()
        call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # marks it as retrieved
        if self._pool is pool:
            pool.shutdown(wait=False)
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        assert timeout_s is not None  # noqa: S101  (without a limit the call is done)
        raise CallAbandoned(call, timeout_s)

    async def close(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for the call in flight."""
        last = asyncio.get_running_loop().run_in_executor(self._pool, int)
        await asyncio.wait({last}, timeout=timeout_s)
        self._pool.shutdown(wait=False)


async def call_with_timeout(work: Callable[[], T], timeout_s: float) -> T:
    """Runs `work` on a daemon thread of its own: an abandoned call does not keep the process from exiting.

    Raises TimeoutError if it has not returned after `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="catalog call", daemon=True).start()
    async with asyncio.timeout(timeout_s):
        return await result
