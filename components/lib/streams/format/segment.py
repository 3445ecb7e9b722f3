"""Segments: records of one partition as blocks that are each worth a request."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from components.lib.streams.format.block import encode_block
from components.lib.streams.format.columns import RecordColumns
from components.lib.streams.format.index import BlockIndex

BLOCK_BYTES = 512 << 10
"""The size of a block before compression, unless one record alone is larger."""


class EncodedSegment(msgspec.Struct, frozen=True):
    blocks: list[bytes]
    index: BlockIndex
    records: int
    size: int
    min_timestamp: int
    max_timestamp: int


def encode_segment(
    columns: RecordColumns, *, tag: int = 0, block_bytes: int = BLOCK_BYTES, at_most: int | None = None
) -> EncodedSegment:
    """Encodes at least one record. CPU-bound: run it in a thread for large segments.

    `at_most` is an upper bound of the columns' size, if known: then small segments need not be measured.
    """
    counts = [len(columns)] if at_most is not None and at_most <= block_bytes else _division(columns, block_bytes)
    blocks: list[bytes] = []
    first = 0
    for count in counts:
        part = columns if len(counts) == 1 else columns.cut(first, first + count)
        blocks.append(encode_block(part, first=first, tag=tag))
        first += count
    index = BlockIndex([len(block) for block in blocks], counts)
    times = columns.timestamps
    return EncodedSegment(blocks, index, len(columns), index.size, min(times), max(times))


def _division(columns: RecordColumns, block_bytes: int) -> list[int]:
    """Returns the number of records per block: as many as fit, at least one."""
    ends = columns.ends()
    if ends[-1] <= block_bytes:
        return [len(columns)]
    counts = []
    done = filled = 0
    while done < len(ends):
        stop = max(done + 1, bisect_right(ends, filled + block_bytes, done))
        counts.append(stop - done)
        done, filled = stop, ends[stop - 1]
    return counts
