"""The upload of one insert's files: all of them are written, or none is left."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from components.lib.lake.files import WrittenFile
from components.lib.lake.storage.objects import Objects, StorageUnavailable
from components.lib.lake.storage.output_streams import Sink
from components.lib.storage_manager.buffers import Part
from components.lib.storage_manager.table_handles import TableHandle
from components.lib.storage_manager.upload_names import UploadNames
from registry.inputs import FileDraft


class Upload:
    """Cannot be used again after `finish` or `stop`."""

    def __init__(self, target: TableHandle, names: UploadNames, objects: Objects, slots: asyncio.Semaphore) -> None:
        self._target = target
        self._names = names
        self._objects = objects
        self._slots = slots  # shared by all uploads of a manager
        self._tasks: list[asyncio.Task[FileDraft]] = []
        self._failure: BaseException | None = None
        self.uris: list[str] = []
        self.unconfirmed: set[str] = set()  # writes without a response, which may still be carried out

    async def write(self, parts: Sequence[Part]) -> None:
        """Starts one file per part. Waits for a free slot, not for the files: a later call may raise the error."""
        if not parts:
            return
        uris = await self._names.take(self._target, [path for path, _ in parts])
        self.uris += uris
        for (path, table), uri in zip(parts, uris, strict=True):
            await self._slots.acquire()
            if self._failure is not None:
                self._slots.release()
                raise self._failure
            task = asyncio.create_task(self._write_one(path, uri, (path, table)))
            task.add_done_callback(self._done)
            self._tasks.append(task)

    async def finish(self) -> list[FileDraft]:
        """Waits until every file is durable. Returns them in the order of `write`."""
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        if self._failure is not None:
            raise self._failure
        return [task.result() for task in self._tasks]

    async def stop(self) -> None:
        """Cancels all writes; nothing is written any more once this returns."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write_one(self, path: str, uri: str, part: Part) -> FileDraft:
        target, table = self._target, part[1]

        def fill(sink: Sink) -> WrittenFile:
            return target.engine.write(table, target.schema, sink)

        size = table.nbytes
        try:
            written = await self._objects.write(uri, fill)
        except StorageUnavailable:
            self.unconfirmed.add(uri)
            raise
        target.compression.learn(size, written.size)
        return FileDraft(
            file_path=uri,
            file_size=written.size,
            row_count=written.rows,
            schema_version=target.schema.version,
            partition_path=path,
            file_type=target.engine.file_type,
            checksum=written.checksum,
            is_compressed=target.engine.compressed,
            column_stats=written.column_stats,
        )

    def _done(self, task: asyncio.Task[FileDraft]) -> None:
        self._slots.release()
        if not task.cancelled() and self._failure is None:
            self._failure = task.exception()
