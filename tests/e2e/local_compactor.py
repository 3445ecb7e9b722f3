"""The compactor without Spark, whose session would barely start before the daemon is killed again. It merges in a
separate process, so that the daemon's loop is as free as with Spark. `use: tests.e2e.local_compactor:create`.

The process outlives a killed daemon until it has finished its task, as a worker of Spark might.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from astha.subscribers import ComponentContext
from astha.tasks import to_completion
from components.compactor.merge import MergeResult, MergeTask, UnmergeableFile, inspect, merge
from components.compactor.settings import CompactorSettings
from components.compactor.subscriber import Compactor

_LENGTH = 8


class ProcessExecutor:
    """One merge at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._free = asyncio.Lock()

    async def merge(self, task: MergeTask) -> MergeResult:
        """When cancelled, it returns after the process has finished its task."""
        async with self._free:
            answer = await to_completion(self._ask(task))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def inspect(self, task: MergeTask) -> list[UnmergeableFile]:
        return await asyncio.to_thread(inspect, task)

    async def health(self) -> None:
        """Always healthy."""

    async def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()

    async def _ask(self, task: MergeTask) -> MergeResult | Exception:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.e2e.local_compactor", stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        order = pickle.dumps(task)
        process.stdin.write(len(order).to_bytes(_LENGTH, "big") + order)
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(_LENGTH), "big")
        answer: MergeResult | Exception = pickle.loads(await process.stdout.readexactly(length))  # noqa: S301
        return answer


def create(settings: Mapping[str, Any], context: ComponentContext) -> Compactor:
    return Compactor(CompactorSettings.model_validate(dict(settings)), context, ProcessExecutor)


def serve(orders: BinaryIO, answers: BinaryIO) -> None:
    while length := orders.read(_LENGTH):
        task = pickle.loads(orders.read(int.from_bytes(length, "big")))  # noqa: S301
        try:
            answer: MergeResult | Exception = merge(task)
        except Exception as error:
            answer = error
        data = pickle.dumps(answer)
        answers.write(len(data).to_bytes(_LENGTH, "big") + data)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
