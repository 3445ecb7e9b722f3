"""Rounds until the end that was there at the start, or for as long as nobody says stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from astha.clock import LoopClock
from components.commands.topic_to_table.errors import RoundFailed
from components.commands.topic_to_table.sink import TopicTable
from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.spark.errors import SessionProblem, SparkError
from components.lib.streams.read_context import Reading
from registry.errors import Unavailable

_LONG_S = 3_600.0
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 60.0


class Runner:
    """``report`` is called after each round, ``trouble`` when one failed that will be tried again."""

    def __init__(
        self,
        job: TopicTable,
        topic: str,
        clock: LoopClock,
        *,
        report: Callable[[], None],
        trouble: Callable[[Exception, float], None],
    ) -> None:
        self._job = job
        self._topic = topic
        self._clock = clock
        self._report = report
        self._trouble = trouble
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """After the round."""
        self._stop.set()

    async def run_to_end(self) -> bool:
        """False if it was stopped before."""
        ends = (await self._job.look()).ends
        while not self._stop.is_set():
            if not await self._job.advance(ends):
                return True
            self._report()
        return False

    async def follow(self, reading: Reading, every_s: float) -> None:
        """A round as soon as there is something, but not within ``every_s`` of the last one's beginning unless that was
        full. What may pass is waited out.
        """
        failures = 0
        keys = [(self._topic, row.partition_id) for row in (await self._job.look()).partitions]
        with reading.feed.watch(keys) as watch:
            while not self._stop.is_set():
                watch.clear()
                began = self._clock.monotonic()
                try:
                    moved = await self._job.advance()
                except Exception as error:
                    if not may_pass(error):
                        raise
                    failures += 1
                    pause = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(failures - 1, 10))
                    self._trouble(error, pause)
                    await self._unless_stopped(self._clock.sleep(pause))
                    continue
                failures = 0
                if moved:
                    self._report()
                    if not self._job.full:
                        await self._unless_stopped(self._clock.sleep(began + every_s - self._clock.monotonic()))
                elif self._job.standing is not None:
                    ends = {(self._topic, number): end for number, end in self._job.standing.ends.items()}
                    await self._unless_stopped(reading.reader.wait(watch, ends, _LONG_S))

    async def _unless_stopped(self, waiting: Awaitable[None]) -> None:
        ends = {asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*ends, return_exceptions=True)


def may_pass(error: Exception) -> bool:
    if isinstance(error, SessionProblem):
        return False
    return isinstance(error, Unavailable | StorageUnavailable | SparkError) or (
        isinstance(error, RoundFailed) and error.passing
    )
