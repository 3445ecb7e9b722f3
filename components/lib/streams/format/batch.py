"""The records of a decoded block: views into its body. `Record` objects are created on demand."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, overload

from components.lib.streams.format.columns import RecordColumns
from components.lib.streams.format.record import Header, Record

if TYPE_CHECKING:
    import pyarrow as pa

KEYS, NULL_KEYS, NULL_VALUES, HEADERS, NULL_HEADERS = 1, 2, 4, 8, 16
"""Flags of a block: which columns its body has."""

_FEW = 100  # offsets; below this NumPy's call overhead dominates


class ByteColumn:
    """A column of byte strings in Arrow's layout: a validity bitmap if some are null, offsets, bytes."""

    __slots__ = ("_bitmap", "_data", "_offsets", "_raw", "end", "length")

    def __init__(self, raw: bytes, at: int, length: int, *, nulls: bool) -> None:
        """`end` is where the next column begins. Raises ValueError if the column does not fit into the body."""
        self._raw = raw
        self.length = length
        self._bitmap = at if nulls else None
        if nulls:
            at = aligned(at + (length + 7) // 8)
        self._offsets = offsets_at(raw, at, length)
        self._data = aligned(at + 4 * (length + 1))
        self.end = aligned(self._data + self._offsets[length])
        if self.end > aligned(len(raw)):
            raise ValueError(f"a column ends at {self.end:,} of {len(raw):,} bytes")

    def __getitem__(self, number: int) -> bytes | None:
        if self._bitmap is not None and not self._raw[self._bitmap + (number >> 3)] >> (number & 7) & 1:
            return None
        return self._raw[self._data + self._offsets[number] : self._data + self._offsets[number + 1]]

    def require_utf8(self) -> None:
        """Raises UnicodeDecodeError, which names the first invalid byte."""
        if not self._raw[self._data : self._data + self._offsets[self.length]].isascii():
            for item in self.items(0, self.length):
                str(item or b"", "utf-8")

    def items(self, first: int, last: int) -> list[bytes | None]:
        """Returns items ``first..last-1``."""
        raw, data = self._raw, self._data
        ends = self._offsets[first : last + 1].tolist()
        found: list[bytes | None] = [raw[data + start : data + end] for start, end in pairwise(ends)]
        if self._bitmap is not None:
            for number in range(first, last):
                if not raw[self._bitmap + (number >> 3)] >> (number & 7) & 1:
                    found[number - first] = None
        return found

    def arrow(self, kind: pa.DataType) -> pa.Array:
        import pyarrow as pa

        body = pa.py_buffer(self._raw)
        bitmap = None if self._bitmap is None else body.slice(self._bitmap, (self.length + 7) // 8)
        at = self._data - 4 * (self.length + 1) - 4 * ((self.length + 1) & 1)
        offsets = body.slice(at, 4 * (self.length + 1))
        data = body.slice(self._data, self._offsets[self.length])
        return pa.Array.from_buffers(kind, self.length, [bitmap, offsets, data])


class Body:
    """The decompressed columns of one block, shared by all batches that are sliced from it."""

    __slots__ = (
        "_header_lists",
        "_header_values",
        "_lists_at",
        "keys",
        "length",
        "names",
        "raw",
        "timestamps",
        "values",
    )

    def __init__(self, raw: bytes, length: int, headers: int, flags: int) -> None:
        """Raises ValueError unless the columns fill the body exactly and every offset points into it.

        All checks are made here, once per block: later reads of the `Body`, by Arrow's C++ too, check nothing.
        """
        self.raw = raw
        self.length = length
        at = 8 * length
        if at > len(raw):
            raise ValueError(f"{length:,} timestamps in {len(raw):,} bytes")
        self.timestamps = memoryview(raw)[:at].cast("q")
        self.keys: ByteColumn | None = None
        if flags & KEYS:
            self.keys = ByteColumn(raw, at, length, nulls=bool(flags & NULL_KEYS))
            at = self.keys.end
        self.values = ByteColumn(raw, at, length, nulls=bool(flags & NULL_VALUES))
        at = self.values.end
        self.names: ByteColumn | None = None
        if flags & HEADERS:
            self._lists_at = at
            self._header_lists = offsets_at(raw, at, length)
            if self._header_lists[length] != headers:
                raise ValueError(f"{self._header_lists[length]:,} headers, not {headers:,}")
            self.names = ByteColumn(raw, aligned(at + 4 * (length + 1)), headers, nulls=False)
            self._header_values = ByteColumn(raw, self.names.end, headers, nulls=bool(flags & NULL_HEADERS))
            at = self._header_values.end
        elif headers:
            raise ValueError(f"{headers:,} headers, but no column of headers")
        if at != len(raw):
            raise ValueError(f"columns end at {at:,} of {len(raw):,} bytes")
        if self.names is not None:
            self.names.require_utf8()

    def headers(self, number: int) -> tuple[Header, ...]:
        if self.names is None:
            return ()
        return tuple(
            (str(self.names[place] or b"", "utf-8"), self._header_values[place])
            for place in range(self._header_lists[number], self._header_lists[number + 1])
        )

    def arrow(self, name: str) -> pa.Array:
        """Returns the column timestamp, key, value or headers, without a copy unless it is absent."""
        import pyarrow as pa

        body = pa.py_buffer(self.raw)
        if name == "timestamp":
            return pa.Array.from_buffers(TIMESTAMPS(), self.length, [None, body.slice(0, 8 * self.length)])
        if name == "key":
            return pa.nulls(self.length, pa.binary()) if self.keys is None else self.keys.arrow(pa.binary())
        if name == "value":
            return self.values.arrow(pa.binary())
        if self.names is None:
            return pa.nulls(self.length, HEADER_LISTS())
        pairs = pa.StructArray.from_arrays(
            [self.names.arrow(pa.string()), self._header_values.arrow(pa.binary())], ["name", "value"]
        )
        lists = body.slice(self._lists_at, 4 * (self.length + 1))
        return pa.Array.from_buffers(HEADER_LISTS(), self.length, [None, lists], children=[pairs])


class RecordBatch(Sequence[Record]):
    """Consecutive records of one partition. Slices share the bytes; `Record`s are created on demand."""

    __slots__ = ("_body", "_start", "_stop", "first_offset")

    def __init__(self, first_offset: int, body: Body, start: int = 0, stop: int | None = None) -> None:
        """`first_offset` is the offset of the body's record number `start`."""
        self.first_offset = first_offset
        self._body = body
        self._start = start
        self._stop = body.length if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self)

    @property
    def timestamps(self) -> memoryview:
        """64-bit integers."""
        return self._body.timestamps[self._start : self._stop]

    @property
    def nbytes(self) -> int:
        """The size of the whole body, which this batch keeps in memory."""
        return len(self._body.raw)

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> RecordBatch: ...

    def __getitem__(self, place: int | slice) -> Record | RecordBatch:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                raise ValueError(f"a step of {step}: a batch holds consecutive records")
            stop = max(start, stop)
            return RecordBatch(self.first_offset + start, self._body, self._start + start, self._start + stop)
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(f"{place} of {len(self)} records")
        body, number = self._body, self._start + place
        key = None if body.keys is None else body.keys[number]
        return Record(
            self.first_offset + place, body.timestamps[number], key, body.values[number], body.headers(number)
        )

    def __iter__(self) -> Iterator[Record]:
        """Slices whole columns, which is far cheaper than `batch[i]` per record."""
        if self._body.names is None:
            yield from map(Record, count(self.first_offset), self.timestamps, self.keys(), self.values())
        else:
            headers = map(self._body.headers, range(self._start, self._stop))
            yield from map(Record, count(self.first_offset), self.timestamps, self.keys(), self.values(), headers)

    def keys(self) -> list[bytes | None]:
        keys = self._body.keys
        return [None] * len(self) if keys is None else keys.items(self._start, self._stop)

    def values(self) -> list[bytes | None]:
        return self._body.values.items(self._start, self._stop)

    def shifted(self, by: int) -> RecordBatch:
        """Returns the same records with offsets increased by `by`."""
        return RecordBatch(self.first_offset + by, self._body, self._start, self._stop)

    def from_offset(self, offset: int) -> RecordBatch:
        """Returns the records from an offset on."""
        return self[max(0, offset - self.first_offset) :]

    def to_columns(self) -> RecordColumns:
        """Returns the records as input for a new block."""
        headers: list[Sequence[Header]] | None = None
        if self._body.names is not None:
            headers = [self._body.headers(number) for number in range(self._start, self._stop)]
        keys = None if self._body.keys is None else self.keys()
        return RecordColumns(array("q", self.timestamps), self.values(), keys, headers)

    def to_arrow(self) -> pa.RecordBatch:
        """Columns ``offset, timestamp, key, value, headers``. All but the offsets are views of the same bytes."""
        import pyarrow as pa

        names = ["offset", "timestamp", "key", "value", "headers"]
        return pa.RecordBatch.from_arrays([self.arrow_column(name) for name in names], names)

    def arrow_column(self, name: str) -> pa.Array:
        """Returns one column of `to_arrow`."""
        import pyarrow as pa

        if name == "offset":
            return pa.arange(self.first_offset, self.next_offset)
        return self._body.arrow(name).slice(self._start, len(self))


def aligned(at: int) -> int:
    return (at + 7) & ~7


def offsets_at(raw: bytes, at: int, length: int) -> memoryview:
    """Returns ``length + 1`` offsets. Raises ValueError unless they fit, begin at 0 and never decrease."""
    end = at + 4 * (length + 1)
    if end > len(raw):
        raise ValueError(f"offsets end at {end:,} of {len(raw):,} bytes")
    offsets = memoryview(raw)[at:end].cast("i")
    if offsets[0] != 0:
        raise ValueError(f"offsets begin at {offsets[0]:,}, not at 0")
    if not _ascending(offsets):
        raise ValueError(f"offsets decrease, among {length + 1:,} from byte {at:,} on")
    return offsets


def _ascending(offsets: memoryview) -> bool:
    if len(offsets) < _FEW:
        numbers = offsets.tolist()
        return bool(numbers == sorted(numbers))
    import numpy as np

    found = np.frombuffer(offsets, np.int32)
    return bool((found[1:] >= found[:-1]).all())


def TIMESTAMPS() -> pa.DataType:  # noqa: N802  (a constant, created when Arrow is imported)
    import pyarrow as pa

    return pa.timestamp("ms", tz="UTC")


def HEADER_LISTS() -> pa.DataType:  # noqa: N802
    import pyarrow as pa

    return pa.list_(pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]))
