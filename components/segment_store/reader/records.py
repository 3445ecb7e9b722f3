"""What a read answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from components.segment_store.format import Record, RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa


class Records:
    """Records of one partition in order, as batches that share the cache's bytes. Empty at the partition's end."""

    __slots__ = ("batches", "next_offset")

    def __init__(self, batches: Sequence[RecordBatch], next_offset: int) -> None:
        self.batches = batches
        self.next_offset = next_offset  # where to read on

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.batches)

    def to_arrow(self) -> pa.Table:
        """``offset, timestamp, key, value, headers``: views of the same bytes, but for the offsets."""
        import pyarrow as pa

        if not self.batches:
            raise ValueError("no records, hence no columns: look at `len` first")
        return pa.Table.from_batches([batch.to_arrow() for batch in self.batches])


def trimmed(batches: Sequence[RecordBatch], max_records: int | None, max_bytes: int) -> list[RecordBatch]:
    """The first of them, so many records and about so many bytes; at least one record if there is any.

    A batch's bytes are taken to be spread evenly over its records.
    """
    kept: list[RecordBatch] = []
    records, size = 0, 0
    for batch in batches:
        room = len(batch)
        each = max(1, batch.record_bytes)
        room = min(room, (max_bytes - size) // each)
        if max_records is not None:
            room = min(room, max_records - records)
        if room <= 0 and kept:
            break
        part = batch if room >= len(batch) else batch[: max(1, room)]
        kept.append(part)
        records += len(part)
        size += each * len(part)
        if len(part) < len(batch):
            break
    return kept
