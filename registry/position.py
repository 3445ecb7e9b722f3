"""Positions in the registry's history, and which transactions a snapshot contains.

A *position* orders commits: an LSN on PostgreSQL, a change sequence on SQLite, a time on CockroachDB. A *snapshot
visibility* says which transactions a consistent snapshot contains. PostgreSQL's positions can't say that: it writes a
commit record before the transaction becomes visible, so only the transaction id tells whether a snapshot contains it.
"""

from __future__ import annotations

from typing import NewType, Protocol, TypeAlias

import msgspec

Position = NewType("Position", int)

_XID_SPACE = 1 << 32


class SnapshotVisibility(Protocol):
    """Which transactions a snapshot contains."""

    def contains(self, transaction: int, position: Position) -> bool:
        """Whether the snapshot contains this committed transaction of the change stream."""
        ...


class SequenceVisibility(msgspec.Struct, frozen=True, tag="sequence"):
    """SQLite: one writer at a time, so the change sequence read inside the snapshot is exact."""

    last: Position

    def contains(self, transaction: int, position: Position) -> bool:
        return position <= self.last

    def splits(self, transaction: int, position: Position) -> bool:
        """Whether the snapshot contains only a part of this transaction.

        The change log joins consecutive commits of writers that announce no transaction number. The number of such a
        transaction is the negative sequence of its first change.
        """
        return transaction < 0 and -transaction <= self.last < position


class TimestampVisibility(msgspec.Struct, frozen=True, tag="timestamp"):
    """CockroachDB: a snapshot is read at a timestamp, the last one of a nanosecond (see `registry.hlc`).

    The number of a transaction is the nanosecond of its commit. Its position may be later, if several are the same.
    """

    last: Position

    def contains(self, transaction: int, position: Position) -> bool:
        return transaction <= self.last


class XidVisibility(msgspec.Struct, frozen=True, tag="xid"):
    """PostgreSQL: the result of ``pg_current_snapshot()`` in the transaction that reads the rows."""

    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> XidVisibility:
        """Parses ``xmin:xmax:xip,xip,...``, with 64-bit transaction ids."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def contains(self, transaction: int, position: Position) -> bool:
        xid = self._widen(transaction)
        return xid < self.xmax and xid not in self.running

    def _widen(self, xid: int) -> int:
        """Returns the 64-bit id nearest to the snapshot's: the stream carries only 32 bits."""
        if xid >= _XID_SPACE:
            return xid
        wide = (self.xmax & -_XID_SPACE) | xid
        if wide - self.xmax > _XID_SPACE // 2:
            wide -= _XID_SPACE
        elif self.xmax - wide > _XID_SPACE // 2:
            wide += _XID_SPACE
        return wide


AnySnapshotVisibility: TypeAlias = SequenceVisibility | XidVisibility | TimestampVisibility
"""What can be recorded: the tag tells them apart."""
