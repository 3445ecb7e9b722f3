"""Notices another process's commit, within a millisecond with inotify and a few without.

`PRAGMA data_version` (the caller's `changed`) shows whether there was a commit. It costs microseconds but has to be
polled; inotify hints when to poll. It watches the directory, because the write-ahead log is created and deleted, and it
fires when frames are written, before they are synced and visible: so polling continues for a while after a hint, at
first every tenth of a millisecond, then at growing intervals. Without inotify the file is polled all the time, more
often after a change.

Everything here blocks, in a thread of the caller.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from astha import inotify

_POLL_GRAIN_S = 0.001  # poll(2) counts in milliseconds


class PollIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds between two polls."""

    shortest: float = 0.0001
    longest: float = 0.005  # also without inotify and without changes: about one per cent of a core
    settling: float = 0.25  # how long to keep polling after a hint, or after a change without inotify
    idle: float = 0.25  # with inotify: for what it does not report, such as a replaced directory


class CommitWatcher:
    def __init__(self, path: Path, intervals: PollIntervals | None = None, *, inotify: bool = True) -> None:
        self._path = path
        self._intervals = intervals or PollIntervals()
        self._wanted = inotify
        self._stopped = threading.Event()
        self._closed = False
        self._woken, self._wake = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._directory: DirectoryWatch | None = None
        self.arm()

    @property
    def uses_inotify(self) -> bool:
        """Whether the directory is watched."""
        return self._directory is not None

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def arm(self) -> None:
        """Watches the directory that the file is in now, with links resolved."""
        self._disarm()
        if self._wanted:
            self._directory = DirectoryWatch.of(self._path)
        if self._directory is not None:
            self._poll.register(self._directory.descriptor, select.POLLIN)

    def wait(self, changed: Callable[[], bool]) -> None:
        """Returns when `changed` does, or after `stop`."""
        if self._directory is None:
            self._poll_until(changed)
        between = self._intervals.longest if self._directory is None else self._intervals.idle
        while not self.stopped and not changed():
            if self._hint(between):
                self._poll_until(changed)

    def pause(self, seconds: float) -> None:
        """Returns after that time, or after `stop`."""
        self._stopped.wait(seconds)

    def stop(self) -> None:
        """Callable from any thread, and final."""
        if not self.stopped:
            self._stopped.set()
            os.write(self._wake, b"!")

    def close(self) -> None:
        """Call after `stop`, when no thread waits any more."""
        self._disarm()
        if not self._closed:
            self._closed = True
            os.close(self._woken)
            os.close(self._wake)

    def _poll_until(self, changed: Callable[[], bool]) -> bool:
        """Polls at growing intervals, a quarter of the time so far: a long commit may be noticed that much later."""
        intervals, start = self._intervals, time.monotonic()
        while not self.stopped and (elapsed := time.monotonic() - start) < intervals.settling:
            if changed():
                return True
            step = min(max(elapsed / 4, intervals.shortest), intervals.longest)
            if step < _POLL_GRAIN_S:
                time.sleep(step)
            elif self._hint(step):
                start = time.monotonic()
        return False

    def _hint(self, timeout: float) -> bool:
        """Waits for hints, and returns whether one came in time."""
        if self._directory is None:
            time.sleep(timeout)
            return False
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout * 1000)]
        return self._directory.descriptor in ready and self._directory.drain()

    def _disarm(self) -> None:
        if self._directory is not None:
            self._poll.unregister(self._directory.descriptor)
            self._directory.close()
            self._directory = None


class DirectoryWatch:
    """The directory of a database: writes to its files, their creation and deletion."""

    _MASK = inotify.MODIFY | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.CREATE | inotify.DELETE

    def __init__(self, descriptor: int, names: frozenset[bytes]) -> None:
        self.descriptor = descriptor
        self._names = names

    @classmethod
    def of(cls, path: Path) -> DirectoryWatch | None:
        """Returns None if there is no inotify, no directory, or no free watch."""
        real = path.resolve()
        descriptor = inotify.watch(real.parent, cls._MASK)
        if descriptor is None:
            return None
        name = os.fsencode(real.name)
        return cls(descriptor, frozenset({name, name + b"-wal", name + b"-journal"}))

    def drain(self) -> bool:
        """Reads all events, and returns whether any concerns the database."""
        found = list(inotify.events(self.descriptor))
        return any(name in self._names or mask & inotify.OVERFLOW for mask, name in found)

    def close(self) -> None:
        os.close(self.descriptor)
