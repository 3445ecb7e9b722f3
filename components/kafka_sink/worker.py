"""A thread that runs blocking calls one after the other, so that the event loop never waits for a broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import ParamSpec, TypeVar

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
        self._interrupted = threading.Event()

    def interrupted(self) -> bool:
        return self._interrupted.is_set()

    async def run(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Returns the call's result. A cancellation interrupts the call, and is raised when it has ended: two calls
        never overlap.
        """

        def begin() -> T:
            return call(*arguments, **options)

        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        future = asyncio.get_running_loop().run_in_executor(self._executor, copy_context().run, begin)
        try:
            return await to_completion(future, self._interrupted.set)
        finally:
            if future.done():
                self._interrupted.clear()

    def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)
