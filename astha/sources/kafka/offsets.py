"""Which offset of the topic a position belongs to, and what is committed to Kafka with it."""

from __future__ import annotations

from collections import deque

import msgspec

from astha.sources.continuity import Continuity
from registry.position import Position

_MAX_MARKS = 8_192


class Resumption(msgspec.Struct, frozen=True):
    """From `offset` on, a follower lacks nothing: everything up to `position` was received before."""

    offset: int
    position: Position
    epoch: int
    history: str

    def to_metadata(self) -> str:
        """Returns the metadata of the committed offset, as JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_metadata(cls, text: str, offset: int) -> Resumption | None:
        """Returns None if the offset was committed by another kind of consumer, or moved by an operator."""
        try:
            found = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            return None
        return found if found.offset == offset else None


class Marks:
    """Positions and offsets of what is not acknowledged yet. If there are too many, every second one is forgotten:
    an earlier offset only repeats some records.
    """

    def __init__(self) -> None:
        self._marks: deque[Resumption] = deque()

    def __len__(self) -> int:
        return len(self._marks)

    def note(self, continuity: Continuity, next_offset: int) -> None:
        """The record before `next_offset` was taken."""
        if continuity.synchronising or continuity.position is None or continuity.history is None:
            return
        mark = Resumption(next_offset, continuity.position, continuity.epoch, continuity.history)
        marks = self._marks
        if marks and (marks[-1].history != mark.history or marks[-1].position > mark.position):
            marks.clear()
        elif marks and marks[-1].position == mark.position:
            marks.pop()
        marks.append(mark)
        if len(marks) > _MAX_MARKS:
            last = len(marks) - 1
            self._marks = deque(mark for number, mark in enumerate(marks) if number % 2 == 0 or number == last)

    def acknowledge(self, position: Position) -> Resumption | None:
        """Returns the last mark up to this position, and forgets those before it."""
        found: Resumption | None = None
        while self._marks and self._marks[0].position <= position:
            found = self._marks.popleft()
        if found is not None:
            self._marks.appendleft(found)
        return found

    def at_most(self, position: Position) -> Resumption | None:
        return next((mark for mark in reversed(self._marks) if mark.position <= position), None)
