"""The block index of a segment, stored in the segment's row, so that a read never fetches an index."""

from __future__ import annotations

from base64 import b85decode, b85encode
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from components.lib.streams.errors import Corrupt
from components.lib.varint import decode_all, encode_all


class BlockLocation(msgspec.Struct, frozen=True, gc=False):
    """`start` in bytes and `first` in records, both relative to the segment."""

    start: int
    size: int
    first: int
    records: int


class BlockIndex:
    """The blocks of one segment, in order."""

    __slots__ = ("_firsts", "_records", "_sizes", "_starts")

    def __init__(self, sizes: Sequence[int], records: Sequence[int]) -> None:
        """Takes bytes and records per block."""
        self._sizes = sizes
        self._records = records
        self._starts = list(accumulate(sizes, initial=0))
        self._firsts = list(accumulate(records, initial=0))

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, number: int) -> BlockLocation:
        if not 0 <= number < len(self):
            raise IndexError(f"{number} of {len(self)} blocks")
        return BlockLocation(self._starts[number], self._sizes[number], self._firsts[number], self._records[number])

    def __iter__(self) -> Iterator[BlockLocation]:
        return map(self.__getitem__, range(len(self)))

    @property
    def size(self) -> int:
        return self._starts[-1]

    @property
    def records(self) -> int:
        return self._firsts[-1]

    def find_block(self, relative: int) -> int:
        """Returns the number of the block that contains a relative offset. Raises IndexError if there is none."""
        if not 0 <= relative < self.records:
            raise IndexError(f"{relative} of {self.records} records")
        return bisect_right(self._firsts, relative) - 1

    def encode(self) -> str | None:
        """Returns the value of `segments.block_index`: None if the segment is one block."""
        if len(self) == 1:
            return None
        return b85encode(
            encode_all(number for pair in zip(self._sizes, self._records, strict=True) for number in pair)
        ).decode()

    @classmethod
    def decode(cls, text: str | None, size: int, records: int) -> BlockIndex:
        """Raises Corrupt unless the sums are the row's `size_bytes` and `record_count`."""
        if text is None:
            return cls([size], [records])
        try:
            numbers = list(decode_all(b85decode(text)))
            index = cls(numbers[::2], numbers[1::2])
        except ValueError as error:
            raise Corrupt(f"block_index {text[:40]!r} can't be read: {error}", length=size) from error
        if not all(numbers):
            raise Corrupt(f"block_index {text[:40]!r} has a block without bytes or records", length=size)
        if len(numbers) % 2 or index.size != size or index.records != records:
            raise Corrupt(
                f"block_index has {index.size:,} bytes and {index.records:,} records, "
                f"the segment's row has {size:,} and {records:,}",
                length=size,
            )
        return index
