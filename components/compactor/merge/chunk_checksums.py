"""Checksums of encoded columns, whatever the order of the row groups."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from components.compactor.merge.task import ROWS
from components.lib.lake.files.statistics import leaves
from components.lib.lake.schema.table_schema import TableSchema

_EVERY_BIT = 2**64 - 1
_ODD = 0x9E3779B97F4A7C15


class ChunkSums:
    """Of each leaf column a sum over its chunks; and one over whole row groups, so that no chunk is with others'."""

    def __init__(self, schema: TableSchema) -> None:
        self._ids = [leaf.field_id for leaf in leaves(schema)]
        self._sums = dict.fromkeys([*self._ids, ROWS], 0)

    def add(self, chunks: Sequence[memoryview]) -> None:
        """A row group's."""
        whole = 0
        for field_id, chunk in zip(self._ids, chunks, strict=True):
            number = zlib.crc32(chunk) << 32 | len(chunk) & 0xFFFFFFFF
            self._count(field_id, number)
            whole = _mix(whole ^ number)
        self._count(ROWS, whole)

    def texts(self) -> dict[int, str]:
        return {field_id: f"{total:016x}" for field_id, total in self._sums.items()}

    def _count(self, field_id: int, number: int) -> None:
        self._sums[field_id] = (self._sums[field_id] + _mix(number)) & _EVERY_BIT


def _mix(number: int) -> int:
    number = number * _ODD & _EVERY_BIT
    return (number ^ number >> 29) * _ODD & _EVERY_BIT
