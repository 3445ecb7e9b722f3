"""Rows that don't fit their table: separated from those that do, with the reason for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from components.lib.storage_manager.errors import RowsRefused


class Reject(msgspec.Struct, frozen=True):
    """``row`` counts from 1. ``values`` is the row as it was read: an object, or the text of a line."""

    row: int
    column: str | None
    reason: str
    values: Any


OnReject: TypeAlias = Callable[[Reject], None]


def fitting(
    length: int, convert: Callable[[int, int], pa.Table], values: Callable[[int], Any], number: Callable[[int], int],
    reject: OnReject,
) -> Iterator[pa.Table]:  # fmt: skip
    """Yields the converted rows that fit, in order, and calls ``reject`` for the others.

    ``convert`` takes a range of rows and raises `RowsRefused`; ``number`` returns a row's number for people. A range
    that is refused is halved, so n bad rows cost about n log(length) conversions of ever smaller ranges. Raises
    `RowsRefused` if all rows of a range are refused for a column's type or absence.
    """
    waiting = [(0, length)] if length else []
    while waiting:
        low, high = waiting.pop()
        try:
            yield convert(low, high)
        except RowsRefused as refused:
            if refused.row is None and high - low == length:
                raise
            if high - low == 1:
                reject(Reject(number(low), refused.column, refused.why, values(low)))
                continue
            middle = (low + high) // 2
            waiting += [(middle, high), (low, middle)]


class FirstRejects:
    """Counts rejects, and keeps the first few for a message."""

    def __init__(self, kept: int = 3) -> None:
        self.count = 0
        self.first: list[Reject] = []
        self._kept = kept

    def __call__(self, reject: Reject) -> None:
        self.count += 1
        if len(self.first) < self._kept:
            self.first.append(reject)

    def __str__(self) -> str:
        shown = "; ".join(str(RowsRefused(each.reason, row=each.row, column=each.column)) for each in self.first)
        if self.count == 1:
            return shown
        return f"{self.count:,} rows don't fit: {shown}{'; ...' if self.count > len(self.first) else ''}"
