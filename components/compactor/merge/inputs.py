"""The files of a group: fetched from storage, checked against the registry's rows, and decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from components.compactor.merge.footer import Footer, length_of
from components.compactor.merge.projection import Projection
from components.compactor.merge.task import BadInput, MergeInput, reading
from components.lib.lake.storage.objects import Objects
from components.lib.lake.storage.output_streams import checksum_of
from components.lib.parquet_tail import TAIL

_AT_ONCE = 8  # requests
_LIKELY_FOOTER = 64 << 10


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
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(place: int) -> Footer:
            async with gate:
                file = self.files[place]
                if self.held:
                    data = self._data[place] = await self._fetch(file)
                    return self._footer(file, data)
                tail = await fetch_tail(self._objects, file.path, file.size)
                self.bytes_read += len(tail)
                return self._footer(file, tail)

        self.footers = list(await asyncio.gather(*(one(place) for place in range(len(self.files)))))

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


async def fetch(objects: Objects, file: MergeInput) -> bytes:
    """Raises `BadInput` if size or checksum are not those of its row."""
    data = await objects.get(file.path)
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
