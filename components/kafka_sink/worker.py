"""A thread that runs blocking calls one after the other, so that the event loop never waits for a broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import ParamSpec, TypeVar, cast

from astha.tasks import to_completion

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """Its calls look at `interrupted` while they wait, and end soon after a caller was cancelled. It can be used again
    after `close`: a component is stopped and started again when leadership is lost and won.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._interruption = threading.Event()  # of the call that runs: each has its own
        self._submitted = 0  # written in the loop
        self._begun = 0  # written in the thread

    def interrupted(self) -> bool:
        """Whether the caller of the call that runs was cancelled. For that call."""
        return self._interruption.is_set()

    def awaited(self) -> bool:
        """Whether another call waits for the one that runs. For that call."""
        return self._submitted > self._begun

    async def run(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Returns the call's result. A cancellation interrupts the call, and is raised when it has ended: two calls
        never overlap. A call that has not begun by then is not made.
        """
        interruption = threading.Event()

        def begin() -> T:
            self._begun += 1
            if interruption.is_set():
                return cast("T", None)  # never seen: the caller is cancelled
            self._interruption = interruption
            return call(*arguments, **options)

        return await to_completion(self._submit(begin), interruption.set)

    async def clean_up(self, call: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """As `run`, but the call is made in any case, and not interrupted."""

        def begin() -> None:
            self._begun += 1
            self._interruption = threading.Event()
            call(*arguments, **options)

        await to_completion(self._submit(begin))

    def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)

    def _submit(self, begin: Callable[[], T]) -> asyncio.Future[T]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._submitted += 1
        return asyncio.get_running_loop().run_in_executor(self._executor, copy_context().run, begin)
