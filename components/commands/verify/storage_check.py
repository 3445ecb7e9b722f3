"""Data files in storage: whether they are there, as long as registered, and of the registered content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from components.commands.verify.report import Kind
from components.lib.lake.storage.objects import ObjectMissing
from components.lib.lake.storage.output_streams import ChecksummedSink
from components.lib.lake.table_lookup import full_name
from registry.contract import MetadataStore
from registry.models import LakeTable, TableFile

_CHUNK = 8 << 20
_ALGORITHM = "sha256:"

Progress = Callable[[str, int, int], None]
"""Table, files done, files in all."""


class Reading(Protocol):
    async def size(self, uri: str) -> int | None: ...

    async def get_range(self, uri: str, start: int, length: int) -> bytes: ...


class Stored(msgspec.Struct):
    """Of one table."""

    checked: int = 0
    bytes_read: int = 0
    without_checksum: int = 0
    found: dict[Kind, list[str]] = {}


class StorageCheck:
    """`checksums` reads every file; else only sizes are asked for. StorageError if storage does not answer."""

    def __init__(self, store: MetadataStore, objects: Reading, *, checksums: bool, parallel: int) -> None:
        self._store = store
        self._objects = objects
        self._checksums = checksums
        self._parallel = parallel

    async def run(self, table: LakeTable, total: int, progress: Progress) -> Stored:
        """Holds no snapshot, since it may take hours: a file that is no longer registered when it is found wrong was
        removed meanwhile.
        """
        name = full_name(table)
        stored = Stored()
        waiting: asyncio.Queue[TableFile | None] = asyncio.Queue(2 * self._parallel)

        async def feed() -> None:
            async for file in self._store.stream_files(table.id):
                await waiting.put(file)
            for _ in range(self._parallel):
                await waiting.put(None)

        async def work() -> None:
            while (file := await waiting.get()) is not None:
                await self._check(file, stored)
                stored.checked += 1
                progress(name, stored.checked, max(total, stored.checked))

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(feed())
                for _ in range(self._parallel):
                    group.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return stored

    async def _check(self, file: TableFile, stored: Stored) -> None:
        wrong = await self._wrong(file, stored)
        if wrong is None:
            return
        still = await self._store.get_files(file.table_id, [file.file_path])
        if still and still[0] == file:
            kind, text = wrong
            stored.found.setdefault(kind, []).append(text)

    async def _wrong(self, file: TableFile, stored: Stored) -> tuple[Kind, str] | None:
        path = file.file_path
        size = await self._objects.size(path)
        if size is None:
            return Kind.FILE_MISSING, path
        if size != file.file_size:
            return Kind.FILE_SIZE, f"{path}: {size:,} bytes, registered with {file.file_size:,}"
        if not self._checksums:
            return None
        if file.checksum is None or not file.checksum.startswith(_ALGORITHM):  # another writer's
            stored.without_checksum += 1
            return None
        try:
            found = await self._checksum(file, stored)
        except ObjectMissing:
            return Kind.FILE_MISSING, path
        return None if found == file.checksum else (Kind.CHECKSUM, f"{path}: {found}, registered with {file.checksum}")

    async def _checksum(self, file: TableFile, stored: Stored) -> str:
        tally = ChecksummedSink(_Nowhere())
        while tally.size < file.file_size:
            chunk = await self._objects.get_range(file.file_path, tally.size, min(_CHUNK, file.file_size - tally.size))
            if not chunk:
                break
            await asyncio.to_thread(tally.write, chunk)
            stored.bytes_read += len(chunk)
        return tally.checksum


class _Nowhere:
    def write(self, data: bytes, /) -> int:
        return len(data)
