"""Checks data files in storage: existence, registered size, and registered content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from components.commands.verify.report import DifferenceKind
from components.lib.lake.storage.objects import ObjectMissing
from components.lib.lake.storage.output_streams import ChecksummedSink
from components.lib.lake.table_lookup import full_name
from registry.contract import MetadataStore
from registry.models import LakeTable, TableDeleteFile, TableFile

_CHUNK = 8 << 20
_ALGORITHM = "sha256:"

ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Takes the table, the files done and the total."""


class ObjectReader(Protocol):
    async def size(self, uri: str) -> int | None: ...

    async def get_range(self, uri: str, start: int, length: int) -> bytes: ...


class StorageCheckResult(msgspec.Struct):
    """Of one table."""

    checked: int = 0
    bytes_read: int = 0
    without_checksum: int = 0
    found: dict[DifferenceKind, list[str]] = {}


class StorageCheck:
    """`checksums` reads every file; otherwise only sizes are requested."""

    def __init__(self, store: MetadataStore, objects: ObjectReader, *, checksums: bool, parallel: int) -> None:
        self._store = store
        self._objects = objects
        self._checksums = checksums
        self._parallel = parallel

    async def run(self, table: LakeTable, total: int, progress: ProgressCallback) -> StorageCheckResult:
        """Holds no snapshot of the registry, because it may take hours: a bad file that is no longer registered was
        removed in the meantime. Raises `StorageError` if storage does not answer.
        """
        name = full_name(table)
        result = StorageCheckResult()
        waiting: asyncio.Queue[TableFile | None] = asyncio.Queue(2 * self._parallel)

        async def feed() -> None:
            async for file in self._store.stream_files(table.id):
                await waiting.put(file)
            for _ in range(self._parallel):
                await waiting.put(None)

        async def work() -> None:
            while (file := await waiting.get()) is not None:
                await self._check(file, result)
                result.checked += 1
                progress(name, result.checked, max(total, result.checked))

        await self._check_deletes(table, result)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(feed())
                for _ in range(self._parallel):
                    group.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return result

    async def _check_deletes(self, table: LakeTable, result: StorageCheckResult) -> None:
        """Asks for the sizes of delete files; engines write them without a checksum."""
        missing: list[TableDeleteFile] = []
        after = 0
        while page := await self._store.list_delete_files(table.id, after=after):
            for file in page:
                result.checked += 1
                if await self._objects.size(file.file_path) is None:
                    missing.append(file)
            after = page[-1].id
        for file in missing:
            if file in await self._store.list_delete_files(table.id, after=file.id - 1, limit=1):
                result.found.setdefault(DifferenceKind.DELETES_MISSING, []).append(file.file_path)

    async def _check(self, file: TableFile, result: StorageCheckResult) -> None:
        problem = await self._problem(file, result)
        if problem is None:
            return
        still = await self._store.get_files(file.table_id, [file.file_path])
        if still and still[0] == file:
            kind, text = problem
            result.found.setdefault(kind, []).append(text)

    async def _problem(self, file: TableFile, result: StorageCheckResult) -> tuple[DifferenceKind, str] | None:
        path = file.file_path
        size = await self._objects.size(path)
        if size is None:
            return DifferenceKind.FILE_MISSING, path
        if size != file.file_size:
            return DifferenceKind.FILE_SIZE, f"{path}: {size:,} bytes, registered with {file.file_size:,}"
        if not self._checksums:
            return None
        if file.checksum is None or not file.checksum.startswith(_ALGORITHM):  # written by another engine
            result.without_checksum += 1
            return None
        try:
            found = await self._checksum(file, result)
        except ObjectMissing:
            return DifferenceKind.FILE_MISSING, path
        return (
            None
            if found == file.checksum
            else (DifferenceKind.CHECKSUM, f"{path}: {found}, registered with {file.checksum}")
        )

    async def _checksum(self, file: TableFile, result: StorageCheckResult) -> str:
        tally = ChecksummedSink(_Discard())
        while tally.size < file.file_size:
            chunk = await self._objects.get_range(file.file_path, tally.size, min(_CHUNK, file.file_size - tally.size))
            if not chunk:
                break
            await asyncio.to_thread(tally.write, chunk)
            result.bytes_read += len(chunk)
        return tally.checksum


class _Discard:
    def write(self, data: bytes, /) -> int:
        return len(data)
