"""Where in the registry's history something stands.

A *position* orders commits: an LSN on PostgreSQL, a change sequence on SQLite. A *place* is what one consistent
snapshot contains. The two are not the same thing: on PostgreSQL a commit record is written before the transaction
becomes visible, so comparing LSNs can't tell whether a snapshot holds a transaction. Its transaction id can.
"""

from __future__ import annotations

from typing import NewType, Protocol

import msgspec

Position = NewType("Position", int)

_XID_SPACE = 1 << 32


class SnapshotVisibility(Protocol):
    """What a snapshot contains."""

    def contains(self, transaction: int, position: Position) -> bool:
        """Whether the snapshot already holds the effects of this committed transaction of the change stream."""
        ...


class SequenceVisibility(msgspec.Struct, frozen=True, tag="sequence"):
    """SQLite: one writer at a time, so the change sequence read inside the snapshot is exact."""

    last: Position

    def contains(self, transaction: int, position: Position) -> bool:
        return position <= self.last

    def splits(self, transaction: int, position: Position) -> bool:
        """Whether it holds only some of it. The change log joins commits of writers who don't announce themselves, if
        it finds them together; such a transaction's number is the negative of its first change's.
        """
        return transaction < 0 and -transaction <= self.last < position


class XidVisibility(msgspec.Struct, frozen=True, tag="xid"):
    """PostgreSQL: the answer of ``pg_current_snapshot()`` inside the transaction that reads the rows."""

    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> XidVisibility:
        """From ``xmin:xmax:xip,xip,...``, 64-bit transaction ids."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def contains(self, transaction: int, position: Position) -> bool:
        xid = self._widen(transaction)
        return xid < self.xmax and xid not in self.running

    def _widen(self, xid: int) -> int:
        """The stream carries 32 bits: take the 64-bit id nearest to the snapshot's."""
        if xid >= _XID_SPACE:
            return xid
        wide = (self.xmax & -_XID_SPACE) | xid
        if wide - self.xmax > _XID_SPACE // 2:
            wide -= _XID_SPACE
        elif self.xmax - wide > _XID_SPACE // 2:
            wide += _XID_SPACE
        return wide
