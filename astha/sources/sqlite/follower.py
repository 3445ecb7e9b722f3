"""`SqliteFollower`: the change log from now on, for a process that only keeps caches right.

It deletes nothing from the log. The daemon does, once everybody there has a change: a follower that was slower finds
rows missing, and says so with a Gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from astha.sources.contract import Batch, Gap, Progress, Started
from astha.sources.limits import TransactionLimits
from astha.sources.sqlite.commit_watcher import Watch
from astha.sources.sqlite.reader import LogReader
from astha.sources.sqlite.reader_thread import Tail
from astha.sources.sqlite.source import TailSettings
from registry.engines import parse_url, sqlite_path
from registry.position import Position

_NONE = "none: following begins"
"""No file's identity: the reader takes the file for another one than was read before, and starts at its end."""


class SqliteFollower:
    def __init__(self, url: str, limits: TransactionLimits | None = None, settings: TailSettings | None = None) -> None:
        self._path = sqlite_path(parse_url(url))
        self._limits = limits or TransactionLimits()
        self._settings = settings or TailSettings()

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        reader = LogReader(self._path, tables, self._limits, Position(0), _NONE)
        tail = Tail(reader, Watch(self._path, inotify=self._settings.inotify))
        anew = False
        try:
            while (batch := await tail.next()) is not None:
                if isinstance(batch, Gap):
                    anew = True
                elif anew and isinstance(batch, Progress):
                    anew = False
                    batch = Started(batch.position)
                yield batch
        finally:
            await asyncio.shield(tail.stop())
