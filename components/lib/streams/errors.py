"""What the segment store may raise, beside the errors of registry and storage.

SegmentStoreError
|-- OffsetTooOld       below what is retained                         -> go on at ``start``, or where you like
|-- OffsetBeyondEnd    nothing was ever written there                 -> read at ``end``, and wait
|-- RecordTooLarge     a record, or an append, beyond the limits      -> split it, or raise the limit
|-- NotLeader          another agent writes this partition            -> go to the one that is named, or wait
|-- AppendFailed       nothing of it was written                      -> append again
|-- AppendUnknown      it may have been written, or may be yet        -> append again with a producer's sequence
|-- OutOfOrder         not the producer's next records                -> something is missing before it, or it is old
|   `-- Duplicate      written already, long ago                      -> go on
|-- Corrupt            bytes that are not what was written            -> names object and range; the rest is readable
|   `-- NotASegment    bytes that no segment store has written        -> the wrong object, or a newer version's
`-- WriterClosed       the writer takes nothing any more              -> open another one
"""

from __future__ import annotations

from astha.errors import AsthaError


class SegmentStoreError(AsthaError):
    pass


class OffsetTooOld(SegmentStoreError):
    """``start`` is the first offset that there is."""

    def __init__(self, topic: str, partition_id: int, offset: int, start: int) -> None:
        self.offset = offset
        self.start = start
        super().__init__(f"offset {offset} of {topic}/{partition_id} is no longer retained: its first is {start}")


class OffsetBeyondEnd(SegmentStoreError):
    """``end`` is the offset that the next record will get."""

    def __init__(self, topic: str, partition_id: int, offset: int, end: int) -> None:
        self.offset = offset
        self.end = end
        super().__init__(f"offset {offset} of {topic}/{partition_id} is beyond its end: the next record gets {end}")


class RecordTooLarge(SegmentStoreError):
    pass


class NotLeader(SegmentStoreError):
    """``holder`` is the agent that writes it, if one does."""

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
    """``uri`` and the range ``start``, ``length`` say where the bytes are."""

    def __init__(self, why: str, *, uri: str = "", start: int = 0, length: int | None = None) -> None:
        self.why = why
        self.uri = uri
        self.start = start
        self.length = length
        end = "end" if length is None else f"{start + length:,}"
        super().__init__(f"{uri or 'bytes'}, from {start:,} to {end}: {why}")


class NotASegment(Corrupt):
    pass
