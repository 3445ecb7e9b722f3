"""Rows that wait for their file, by partition: a file is due when it is large enough or old enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

import pyarrow as pa

from components.lib.lake.files.sorting import sort
from components.lib.storage_manager.table_handles import TableHandle

Part = tuple[str, pa.Table]
"""A partition's path, and rows of it that become one file."""


@dataclass
class _Waiting:
    since: float
    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0


class PartitionBuffers:
    """Of one table and schema version."""

    def __init__(self, target: TableHandle, file_bytes: int, most_bytes: int) -> None:
        self.target = target
        self._file_bytes = file_bytes
        self._most_bytes = most_bytes
        self._waiting: dict[str, _Waiting] = {}
        self._size = 0

    @property
    def rows(self) -> int:
        return sum(table.num_rows for waiting in self._waiting.values() for table in waiting.tables)

    @property
    def oldest(self) -> float | None:
        """When the first of the waiting rows came."""
        return min((waiting.since for waiting in self._waiting.values()), default=None)

    def add(self, parts: Iterable[Part], now: float) -> list[Part]:
        """Answers what is due by size: full files, or the largest if too much waits in all."""
        due = []
        for path, table in parts:
            waiting = self._waiting.setdefault(path, _Waiting(now))
            size = table.nbytes
            waiting.tables.append(table)
            waiting.size += size
            self._size += size
            if waiting.size * self.target.compression.ratio >= self._file_bytes:
                due += self._take(path)
        while self._size > self._most_bytes:
            due += self._take(max(self._waiting, key=lambda path: self._waiting[path].size))
        return due

    def due(self, since: float) -> list[Part]:
        """What has waited since then or longer."""
        return [part for path in list(self._waiting) if self._waiting[path].since <= since for part in self._take(path)]

    def drain(self) -> list[Part]:
        return [part for path in list(self._waiting) for part in self._take(path)]

    def _take(self, path: str) -> list[Part]:
        waiting = self._waiting.pop(path)
        self._size -= waiting.size
        return divide((path, pa.concat_tables(waiting.tables)), self.target, self._file_bytes)


def divide(part: Part, target: TableHandle, file_bytes: int) -> list[Part]:
    """Into files of about the size wanted; if the table is sorted, each has a range of its own."""
    path, table = part
    count = round(table.nbytes * target.compression.ratio / file_bytes)
    if count <= 1:
        return [part]
    each = ceil(table.num_rows / count)
    ordered = sort(table, target.schema)
    return [(path, ordered.slice(start, each)) for start in range(0, table.num_rows, each)]
