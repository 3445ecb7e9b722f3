"""`SqliteLiveSource`: the change log from now on, for a process that keeps caches up to date.

It deletes nothing from the log. The daemon deletes a change once all of its components have it: a live source that is
slower finds rows missing and yields a Gap.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from astha.sources.contract import Batch, Gap, Progress, Started
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.commit_watcher import CommitWatcher
from astha.sources.sqlite.reader import LogReader
from astha.sources.sqlite.reader_thread import ReaderThread
from astha.sources.sqlite.source import TailSettings
from astha.tasks import to_completion
from registry.engines import parse_url, sqlite_path
from registry.position import Position

_NO_IDENTITY = "none: the live source starts"
"""Differs from every file's identity, so the reader starts at the end of the log."""


class SqliteLiveSource:
    def __init__(self, url: str, limits: TransactionLimits | None = None, settings: TailSettings | None = None) -> None:
        self._path = sqlite_path(parse_url(url))
        self._limits = limits or TransactionLimits()
        self._settings = settings or TailSettings()

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        reader = LogReader(self._path, tables, self._limits, Position(0), _NO_IDENTITY)
        tail = ReaderThread(reader, CommitWatcher(self._path, inotify=self._settings.inotify))
        restarting = False
        try:
            while (batch := await tail.next()) is not None:
                if isinstance(batch, Gap):
                    restarting = True
                elif restarting and isinstance(batch, Progress):
                    restarting = False
                    batch = Started(batch.position)
                yield batch
        finally:
            await to_completion(tail.stop())
