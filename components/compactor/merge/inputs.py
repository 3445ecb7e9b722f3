"""The files of a group: fetched from storage, checked against the registry's rows, and decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from components.compactor.merge.footer import Footer, length_of
from components.compactor.merge.projection import Projection
from components.compactor.merge.task import BadInput, MergeInput, reading
from components.lib.lake.storage.objects import Objects
from components.lib.lake.storage.output_streams import checksum_of
from components.lib.parquet_tail import TAIL

_AT_ONCE = 8  # requests
_BATCH_BYTES = 4 << 20
_LIKELY_FOOTER = 64 << 10

T = TypeVar("T")
R = TypeVar("R")


class Inputs:
    """Small groups are held in memory and read once. Of larger ones, only the footers and one file at a time are."""

    def __init__(self, files: tuple[MergeInput, ...], objects: Objects, *, hold_up_to: int) -> None:
        self.files = files
        self.footers: list[Footer] = []
        self.bytes_read = 0
        self.held = sum(file.size for file in files) <= hold_up_to
        self._objects = objects
        self._data: list[bytes | None] = [None] * len(files)
        self._loop = asyncio.get_running_loop()

    async def load(self) -> None:
        """Loads the footers, and the files if they are held."""
        if self.held:
            await self.hold()
            self.footers = [self._footer(file, self._data[place] or b"") for place, file in enumerate(self.files)]
        else:
            self.footers = await _gather(self._tail, self.files)

    async def hold(self) -> None:
        """Loads all files."""
        self.held = True
        await _gather(self._load_batch, _batches(self.files))

    async def _load_batch(self, places: Sequence[int]) -> None:
        files = [self.files[place] for place in places]
        found = await self._objects.get_many([file.path for file in files])
        for place, file, data in zip(places, files, found, strict=True):
            self._data[place] = _checked(data, file)
            self.bytes_read += len(data)

    async def _tail(self, file: MergeInput) -> Footer:
        tail = await fetch_tail(self._objects, file.path, file.size)
        self.bytes_read += len(tail)
        return self._footer(file, tail)

    def take(self, place: int) -> bytes:
        """Returns a file's bytes, and drops them here. Must be called from a thread, unless they are held."""
        data = self._data[place]
        self._data[place] = None
        if data is None:
            data = asyncio.run_coroutine_threadsafe(self._fetch(self.files[place]), self._loop).result()
        return data

    def forget(self) -> None:
        self._data = [None] * len(self.files)

    async def _fetch(self, file: MergeInput) -> bytes:
        data = await fetch(self._objects, file)
        self.bytes_read += len(data)
        return data

    @staticmethod
    def _footer(file: MergeInput, tail: bytes) -> Footer:
        footer = Footer.of(tail, file.size, file.path)
        if footer.rows != file.rows:
            raise BadInput(file.path, f"has {footer.rows:,} rows where the registry says {file.rows:,}")
        return footer


async def _gather(work: Callable[[T], Coroutine[None, None, R]], items: Iterable[T]) -> list[R]:
    """Calls ``work`` for all items, a few at a time."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> R:
        async with gate:
            return await work(item)

    return await asyncio.gather(*map(one, items))


def _batches(files: Sequence[MergeInput]) -> Iterator[list[int]]:
    """Yields the places of files that are read by one call, because a call costs more than a small file."""
    batch: list[int] = []
    size = 0
    for place, file in enumerate(files):
        if batch and size + file.size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(place)
        size += file.size
    if batch:
        yield batch


async def fetch(objects: Objects, file: MergeInput) -> bytes:
    """Raises `BadInput` if size or checksum are not those of its row."""
    return _checked(await objects.get(file.path), file)


def _checked(data: bytes, file: MergeInput) -> bytes:
    if len(data) != file.size:
        raise BadInput(
            file.path,
            f"has {len(data):,} bytes where the registry says {file.size:,}: it was not written by Astha, "
            "or was changed: restore it, or remove it from its table",
        )
    if file.has_checksum and checksum_of(data) != file.checksum:
        raise BadInput(file.path, "is damaged: its bytes do not have the checksum of its row: restore it from a copy")
    return data


async def fetch_tail(objects: Objects, path: str, size: int) -> bytes:
    """Returns the end of a file, with its whole footer."""
    wanted = min(size, _LIKELY_FOOTER)
    while True:
        tail = await objects.get_range(path, size - wanted, wanted)
        needed = min(size, length_of(tail, path) + TAIL)
        if needed <= wanted:
            return tail
        wanted = needed


def decode(data: bytes, file: MergeInput, projection: Projection, *, suspect: bool = False) -> Iterator[pa.Table]:
    """Yields the rows of a file in the current schema, by row group. Raises `BadInput` if anything is wrong with it.

    Arrow's arrays are fully validated if the file has no checksum or is ``suspect``: invalid offsets and text would
    otherwise cause errors far from here.
    """
    rows = 0
    with reading(file.path):
        # A task has one core: threads would use those of other tasks.
        source = pq.ParquetFile(pa.BufferReader(data), read_dictionary=projection.dictionaries(), pre_buffer=False)
        columns = projection.columns(source.schema_arrow, file.path)
        for group in range(source.num_row_groups):
            found = source.read_row_group(group, columns=columns, use_threads=False)
            found.validate(full=suspect or not file.has_checksum)
            rows += found.num_rows
            yield projection.apply(found, file.path)
    if rows != file.rows:
        raise BadInput(file.path, f"gave {rows:,} rows where its footer says {file.rows:,}")
