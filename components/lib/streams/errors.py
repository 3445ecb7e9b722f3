"""Errors of the segment store, beside those of registry and storage.

SegmentStoreError
|-- OffsetTooOld       below the first retained offset                -> continue at ``start``, or elsewhere
|-- OffsetBeyondEnd    above the partition's end                      -> read at ``end``, and wait
|-- RecordTooLarge     a record or an append exceeds the limits       -> split it, or raise the limit
|-- NotLeader          another agent holds the partition's lease      -> use the agent that is named, or wait
|-- AppendFailed       nothing was written                            -> append again
|-- AppendUnknown      it may be written, now or later                -> append again with the same append id
|-- OutOfOrder         not the producer's next sequence               -> records before it are missing, or it is old
|   `-- Duplicate      written already, its offsets are forgotten     -> continue
|-- Corrupt            bytes that are not what was written            -> restore the named range; the rest is readable
|   `-- NotASegment    bytes that no segment store has written        -> wrong object, or written by a newer version
`-- WriterClosed       the writer is closed                           -> open another one
"""

from __future__ import annotations

from astha.errors import AsthaError


class SegmentStoreError(AsthaError):
    pass


class OffsetTooOld(SegmentStoreError):
    """`start` is the first retained offset."""

    def __init__(self, topic: str, partition_id: int, offset: int, start: int) -> None:
        self.offset = offset
        self.start = start
        super().__init__(
            f"offset {offset} of {topic}/{partition_id} is no longer retained: the first retained offset is {start}"
        )


class OffsetBeyondEnd(SegmentStoreError):
    """`end` is the offset that the next record will get."""

    def __init__(self, topic: str, partition_id: int, offset: int, end: int) -> None:
        self.offset = offset
        self.end = end
        super().__init__(f"offset {offset} of {topic}/{partition_id} is beyond its end: the next record gets {end}")


class RecordTooLarge(SegmentStoreError):
    pass


class NotLeader(SegmentStoreError):
    """`holder` is the id of the agent that holds the lease, if one does."""

    def __init__(self, message: str, holder: str | None = None) -> None:
        super().__init__(message)
        self.holder = holder


class AppendFailed(SegmentStoreError):
    pass


class AppendUnknown(SegmentStoreError):
    pass


class OutOfOrder(SegmentStoreError):
    pass


class Duplicate(OutOfOrder):
    pass


class WriterClosed(SegmentStoreError):
    pass


class Corrupt(SegmentStoreError):
    """`uri`, `start` and `length` locate the bytes."""

    def __init__(self, why: str, *, uri: str = "", start: int = 0, length: int | None = None) -> None:
        self.why = why
        self.uri = uri
        self.start = start
        self.length = length
        end = "end" if length is None else f"{start + length:,}"
        super().__init__(f"{uri or 'bytes'}, from {start:,} to {end}: {why}")


class NotASegment(Corrupt):
    pass
