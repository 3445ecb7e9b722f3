"""Notices at once that the process that had a file open for writing has closed it or has ended.

For a standby on the leader's machine: the kernel closes the files of a process that ends, and releases their locks a
moment later. Where there is no inotify, or the file is on another machine, nothing is noticed.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from astha import inotify


class ReleaseWatch:
    """Reports from `arm` to the end of the block. `arm` blocks for as long as the file system does: call it from a
    thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = asyncio.Event()
        self._descriptor: int | None = None
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def arm(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Returns whether closing is reported from now on."""
        descriptor = inotify.watch(self._path.parent, inotify.CLOSE_WRITE)
        if descriptor is not None:
            loop.call_soon_threadsafe(self._read_from, descriptor)
        return descriptor is not None

    async def closed(self) -> None:
        """Returns when the file was closed since the last call."""
        await self._closed.wait()
        self._closed.clear()

    def _read_from(self, descriptor: int) -> None:
        if self._ended or self._descriptor is not None:
            os.close(descriptor)
            return
        self._descriptor = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._read, descriptor)

    def _read(self, descriptor: int) -> None:
        name = os.fsencode(self._path.name)
        for mask, of in list(inotify.events(descriptor)):
            if of == name or mask & inotify.OVERFLOW:
                self._closed.set()
