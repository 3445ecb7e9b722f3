"""Records as columns, as a block is encoded from them. Loops over records run in C."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Self

import msgspec

from components.lib.streams.format.record import Header


class NewRecord(msgspec.Struct, frozen=True):
    """A record without an offset. The default timestamp is the time of the append."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp: int | None = None


_VALUE, _KEY = attrgetter("value"), attrgetter("key")
_HEADERS, _TIMESTAMP = attrgetter("headers"), attrgetter("timestamp")


class RecordColumns:
    """Lists of equal length. `keys` and `headers` are None if no record has any."""

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(
        self,
        timestamps: array[int],
        values: list[bytes | None],
        keys: list[bytes | None] | None = None,
        headers: list[Sequence[Header]] | None = None,
    ) -> None:
        self.timestamps = timestamps
        self.values = values
        self.keys = keys
        self.headers = headers

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, records: Iterable[NewRecord | bytes], now_ms: int) -> Self:
        """Bytes are values without a key."""
        given = list(records)
        kinds = set(map(type, given))
        if kinds <= {bytes}:
            return cls.of_values(given, now_ms)  # type: ignore[arg-type]
        if kinds != {NewRecord}:
            given = [NewRecord(record) if isinstance(record, bytes) else record for record in given]
        times = list(map(_TIMESTAMP, given))
        if None in times:
            times = [now_ms if time is None else time for time in times]
        keys = list(map(_KEY, given))
        headers = list(map(_HEADERS, given))
        return cls(
            array("q", times),
            list(map(_VALUE, given)),
            keys if keys.count(None) < len(keys) else None,
            headers if any(headers) else None,
        )

    @classmethod
    def of_values(cls, values: Sequence[bytes | None], now_ms: int) -> Self:
        return cls(array("q", (now_ms,)) * len(values), list(values))

    @classmethod
    def joined(cls, parts: Sequence[RecordColumns]) -> RecordColumns:
        """Concatenates them. A single part is returned as it is."""
        if len(parts) == 1:
            return parts[0]
        whole = RecordColumns(array("q"), [])
        for part in parts:
            whole.timestamps.extend(part.timestamps)
            whole.values.extend(part.values)
        if any(part.keys is not None for part in parts):
            whole.keys = []
            for part in parts:
                whole.keys.extend(repeat(None, len(part)) if part.keys is None else part.keys)
        if any(part.headers is not None for part in parts):
            whole.headers = []
            for part in parts:
                whole.headers.extend(repeat((), len(part)) if part.headers is None else part.headers)
        return whole

    def cut(self, start: int, stop: int) -> RecordColumns:
        return RecordColumns(
            self.timestamps[start:stop],
            self.values[start:stop],
            None if self.keys is None else self.keys[start:stop],
            None if self.headers is None else self.headers[start:stop],
        )

    def ends(self) -> list[int]:
        """Returns the approximate size of the records up to each one, overhead of the columns included."""
        import numpy as np

        sizes = np.full(len(self), _EACH, np.int64)
        for lengths in self._lengths():
            sizes += np.fromiter(lengths, np.int64, len(self))
        ends: list[int] = sizes.cumsum().tolist()
        return ends

    @property
    def size(self) -> int:
        """The approximate size in memory, and in a block before compression."""
        return _EACH * len(self) + sum(map(sum, self._lengths()))

    def _lengths(self) -> Iterator[Iterable[int]]:
        """Yields the length of each record's item, column by column."""
        yield map(len, present(self.values))
        if self.keys is not None:
            yield map(len, present(self.keys))
        if self.headers is not None:
            yield map(_header_bytes, self.headers)


def present(items: list[bytes | None]) -> list[bytes]:
    """Replaces None by empty bytes. Returns the list itself if there is no None."""
    return [item or b"" for item in items] if None in items else items  # type: ignore[return-value]


_EACH = 16  # a timestamp and two offsets


def _header_bytes(headers: Sequence[Header]) -> int:
    return sum(12 + len(name) + len(value or b"") for name, value in headers)
