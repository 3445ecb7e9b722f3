"""The thread that reads the change log and hands batches to the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading

import structlog

from astha.backoff import Backoff
from astha.clock import SystemLoopClock
from astha.sources.contract import Batch, Gap
from astha.sources.sqlite.commit_watcher import CommitWatcher
from astha.sources.sqlite.reader import LogReader

log = structlog.get_logger(__name__)

_QUEUED_BATCHES = 2  # for the event loop
_BATCHES_PER_READ = 3  # at most: the start, transactions, progress
_RETRY = Backoff(initial_s=0.01, max_s=1.0)


class ReaderThread:
    """Reads while the log has rows and the queue has room. Errors of the file are retried without end; `next`
    raises any other error.
    """

    def __init__(self, reader: LogReader, watch: CommitWatcher) -> None:
        self.reader = reader
        self.failure: str | None = "not connected yet"  # None while connected
        self._watch = watch
        self._free = threading.Semaphore(_QUEUED_BATCHES)
        self._arrived: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue()  # None at the end
        self._loop = asyncio.get_running_loop()
        # Not an executor's thread: the interpreter waits for those at exit even if they were not stopped.
        self._thread = threading.Thread(target=self._run, name="sqlite tail", daemon=True)
        self._thread.start()

    async def next(self) -> Batch | None:
        """Returns None after `stop`."""
        item = await self._arrived.get()
        self._free.release()
        if isinstance(item, BaseException):
            raise item
        return item

    async def stop(self) -> None:
        """Returns once the thread has closed its connection. Idempotent."""
        self._watch.stop()
        self._free.release(_QUEUED_BATCHES + _BATCHES_PER_READ)
        await asyncio.to_thread(self._thread.join)
        self._watch.close()

    def _run(self) -> None:
        try:
            self._read_until_stopped()
        except BaseException as error:
            self._hand_over(error)
        finally:
            self.reader.close()
            self._hand_over(None)

    def _read_until_stopped(self) -> None:
        failures, clock = 0, SystemLoopClock()
        while not self._watch.stopped:
            try:
                batches = self.reader.read()
            except (sqlite3.Error, OSError) as error:
                self._disconnected(error)
                failures += 1
                self._watch.pause(_RETRY.wait_s(failures, clock))
                continue
            if self.failure is not None:
                self._connected()
                failures = 0
            for batch in batches:
                self._free.acquire()
                if isinstance(batch, Gap):
                    self._watch.arm()  # the directory may have changed, too
                self._hand_over(batch)
            if not batches and self.reader.caught_up:
                self._watch.wait(self.reader.changed)

    def _disconnected(self, error: Exception) -> None:
        if self.failure is None:
            log.warning("change log can't be read, retrying", error=str(error))
        self.failure = str(error)
        self.reader.suspend()

    def _connected(self) -> None:
        log.info("change log opened")
        self.failure = None
        self._watch.arm()

    def _hand_over(self, item: Batch | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)
        except RuntimeError:  # the event loop is closed
            self._watch.stop()
