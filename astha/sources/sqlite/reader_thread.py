"""The thread that reads the log, and its way to the event loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading

from astha.sources.contract import Batch, Gap
from astha.sources.sqlite.commit_watcher import Watch
from astha.sources.sqlite.reader import LogReader

log = logging.getLogger(__name__)

_AHEAD = 2  # batches that may be waiting for the event loop
_AT_ONCE = 3  # at most, of one reading: the start, transactions, progress
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0


class Tail:
    """Reads while there is something to read and room for it, else waits. What goes wrong with the file is retried for
    ever; anything else that is raised is a fault of ours, and `next` raises it.
    """

    def __init__(self, reader: LogReader, watch: Watch) -> None:
        self.reader = reader
        self.trouble: str | None = "not connected yet"  # None: connected
        self._watch = watch
        self._room = threading.Semaphore(_AHEAD)
        self._arrived: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue()  # None: that was the last
        self._loop = asyncio.get_running_loop()
        # Not an executor's thread: those are waited for at exit, whoever forgot to stop them.
        self._thread = threading.Thread(target=self._run, name="sqlite tail", daemon=True)
        self._thread.start()

    async def next(self) -> Batch | None:
        """None after `stop`."""
        item = await self._arrived.get()
        self._room.release()
        if isinstance(item, BaseException):
            raise item
        return item

    async def stop(self) -> None:
        """Returns once the thread has closed its connection. Again: does nothing."""
        self._watch.stop()
        self._room.release(_AHEAD + _AT_ONCE)
        await asyncio.to_thread(self._thread.join)
        self._watch.close()

    def _run(self) -> None:
        try:
            self._read_for_ever()
        except BaseException as error:
            self._hand_over(error)
        finally:
            self.reader.close()
            self._hand_over(None)

    def _read_for_ever(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._watch.stopped:
            try:
                batches = self.reader.read()
            except (sqlite3.Error, OSError) as error:
                self._lost(error)
                self._watch.pause(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                continue
            if self.trouble is not None:
                self._found()
                pause = _FIRST_PAUSE_S
            for batch in batches:
                self._room.acquire()
                if isinstance(batch, Gap):
                    self._watch.arm()  # the directory may be another, too
                self._hand_over(batch)
            if not batches and self.reader.caught_up:
                self._watch.wait(self.reader.changed)

    def _lost(self, error: Exception) -> None:
        if self.trouble is None:
            log.warning("the registry can't be read, trying again: %s", error)
        self.trouble = str(error)
        self.reader.suspend()

    def _found(self) -> None:
        log.info("the registry's change log is being read")
        self.trouble = None
        self._watch.arm()

    def _hand_over(self, item: Batch | BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._watch.stop()
