"""Writes the metadata files of commits, and deletes those that no table refers to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from astha.tasks import cancel_and_wait
from components.commands.catalog.errors import Unavailable
from components.commands.catalog.prepared_commit import PreparedCommit
from components.lib.lake.storage.objects import Objects, StorageError
from components.lib.lake.storage.roots import known_roots
from registry.contract import MetadataStore
from registry.errors import RegistryError

log = structlog.get_logger(__name__)


class MetadataWriter:
    """A crash between a file and its commit leaves the file: a few kilobytes that no table refers to."""

    def __init__(self, store: MetadataStore, objects: Objects) -> None:
        self._store = store
        self._objects = objects
        self._deletions: set[asyncio.Task[None]] = set()

    async def write(self, parts: Sequence[PreparedCommit]) -> None:
        """Raises Unavailable if the storage does not take the files."""
        files = [part.file for part in parts if part.file is not None]
        try:
            await asyncio.gather(*(self._objects.put(file.location, file.content) for file in files))
        except StorageError as error:
            raise Unavailable(f"the metadata can't be written: {error}") from error

    async def discard(self, parts: Sequence[PreparedCommit]) -> None:
        """Deletes the files of a commit that did not happen."""
        await self._delete([part.file.location for part in parts if part.file is not None])

    def remove_replaced(self, part: PreparedCommit) -> None:
        """Deletes old metadata files in the background."""
        if part.replaced:
            task = asyncio.create_task(self._delete(part.replaced), name="delete metadata files")
            self._deletions.add(task)
            task.add_done_callback(self._deletions.discard)

    async def close(self) -> None:
        await cancel_and_wait(*self._deletions)

    async def _delete(self, locations: Sequence[str]) -> None:
        if not locations:
            return
        try:
            roots = await known_roots(self._store, self._objects.roots, above=locations)
            await self._objects.delete_many(locations, roots=roots)
        except (StorageError, RegistryError) as error:
            log.warning("metadata files not deleted", files=len(locations), first=locations[0], error=str(error))
