"""Buffers of rows per partition: a file is due when its rows are large enough or old enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

import pyarrow as pa

from components.lib.lake.files.sorting import sort
from components.lib.storage_manager.table_handles import TableHandle

Part = tuple[str, pa.Table]
"""A partition path, and rows of that partition that become one file."""


@dataclass
class _Buffer:
    since: float
    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0


class PartitionBuffers:
    """The buffers of one table and schema version."""

    def __init__(self, target: TableHandle, file_bytes: int, max_bytes: int) -> None:
        self.target = target
        self._file_bytes = file_bytes
        self._max_bytes = max_bytes
        self._buffers: dict[str, _Buffer] = {}
        self._size = 0

    @property
    def rows(self) -> int:
        return sum(table.num_rows for buffer in self._buffers.values() for table in buffer.tables)

    @property
    def oldest(self) -> float | None:
        """Returns when the oldest buffered rows arrived."""
        return min((buffer.since for buffer in self._buffers.values()), default=None)

    def add(self, parts: Iterable[Part], now: float) -> list[Part]:
        """Returns what is due by size: full files, or the largest buffers if too many bytes are buffered in all."""
        due = []
        for path, table in parts:
            buffer = self._buffers.setdefault(path, _Buffer(now))
            size = table.nbytes
            buffer.tables.append(table)
            buffer.size += size
            self._size += size
            if buffer.size * self.target.compression.ratio >= self._file_bytes:
                due += self._take(path)
        while self._size > self._max_bytes:
            due += self._take(max(self._buffers, key=lambda path: self._buffers[path].size))
        return due

    def due(self, since: float) -> list[Part]:
        """Returns the buffers whose first rows arrived at that time or earlier."""
        return [part for path in list(self._buffers) if self._buffers[path].since <= since for part in self._take(path)]

    def drain(self) -> list[Part]:
        return [part for path in list(self._buffers) for part in self._take(path)]

    def _take(self, path: str) -> list[Part]:
        buffer = self._buffers.pop(path)
        self._size -= buffer.size
        return divide((path, pa.concat_tables(buffer.tables)), self.target, self._file_bytes)


def divide(part: Part, target: TableHandle, file_bytes: int) -> list[Part]:
    """Splits rows into files of about the wanted size. In a sorted table each file gets its own range."""
    path, table = part
    count = round(table.nbytes * target.compression.ratio / file_bytes)
    if count <= 1:
        return [part]
    each = ceil(table.num_rows / count)
    ordered = sort(table, target.schema)
    return [(path, ordered.slice(start, each)) for start in range(0, table.num_rows, each)]
