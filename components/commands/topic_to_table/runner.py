"""Runs micro-batches up to the end that the topic has at the start, or until stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.tasks import first_of
from components.commands.topic_to_table.errors import MicroBatchFailed
from components.commands.topic_to_table.sink import TopicSink
from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.spark.errors import SessionProblem, SparkError
from components.lib.streams.read_context import ReadContext
from registry.errors import Unavailable

_LONGEST_WAIT_S = 3_600.0
_BACKOFF = Backoff(initial_s=1.0, max_s=60.0)


class SinkRunner:
    """``report`` is called after each micro-batch, ``on_retry`` when one failed and will be retried."""

    def __init__(
        self,
        sink: TopicSink,
        topic: str,
        clock: LoopClock,
        *,
        report: Callable[[], None],
        on_retry: Callable[[Exception, float], None],
    ) -> None:
        self._sink = sink
        self._topic = topic
        self._clock = clock
        self._report = report
        self._on_retry = on_retry
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Stops after the present micro-batch."""
        self._stop.set()

    async def run_to_end(self) -> bool:
        """Returns False if it was stopped before the end."""
        ends = (await self._sink.read_progress()).ends
        while not self._stop.is_set():
            if not await self._sink.advance(ends):
                return True
            self._report()
        return False

    async def follow(self, reading: ReadContext, every_s: float) -> None:
        """Runs a micro-batch as soon as there are records, but begins none within ``every_s`` of the last one unless
        that was full. Retries transient failures, with backoff.
        """
        failures = 0
        keys = [(self._topic, row.partition_id) for row in (await self._sink.read_progress()).partitions]
        with reading.change_feed.watch(keys) as watch:
            while not self._stop.is_set():
                watch.clear()
                began = self._clock.monotonic()
                try:
                    moved = await self._sink.advance()
                    failures = 0
                    if moved:
                        self._report()
                        if not self._sink.full:
                            pause_s = began + every_s - self._clock.monotonic()
                            await first_of(self._clock.sleep(pause_s), self._stop.wait())
                    elif self._sink.progress is not None:
                        ends = {(self._topic, number): end for number, end in self._sink.progress.ends.items()}
                        await first_of(reading.reader.wait(watch, ends, _LONGEST_WAIT_S), self._stop.wait())
                except Exception as error:
                    if not is_transient(error):
                        raise
                    failures += 1
                    wait_s = _BACKOFF.wait_s(failures, self._clock)
                    self._on_retry(error, wait_s)
                    await first_of(self._clock.sleep(wait_s), self._stop.wait())


def is_transient(error: Exception) -> bool:
    if isinstance(error, SessionProblem):
        return False
    return isinstance(error, Unavailable | StorageUnavailable | SparkError) or (
        isinstance(error, MicroBatchFailed) and error.transient
    )
