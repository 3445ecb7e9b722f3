"""What a read answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from components.lib.streams.format import Record, RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa


class FetchedRecords:
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


def trimmed(batch: RecordBatch, most: int | None) -> RecordBatch:
    """At most so many of its first records, and at least one."""
    return batch if most is None or len(batch) <= most else batch[: max(1, most)]
