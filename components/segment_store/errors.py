"""What the segment store may raise, beside the errors of registry and storage.

SegmentStoreError
|-- RecordTooLarge     a record, or an append, beyond the limits      -> split it, or raise the limit
|-- Corrupt            bytes that are not what was written            -> names object and range; the rest is readable
`-- NotASegment        bytes that no segment store has written        -> the wrong object, or a newer version's
"""

from __future__ import annotations

from astha.errors import AsthaError


class SegmentStoreError(AsthaError):
    pass


class RecordTooLarge(SegmentStoreError):
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
