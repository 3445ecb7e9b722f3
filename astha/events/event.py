"""One row changed."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from registry.json_text import JsonValue
from registry.models import Row
from registry.position import Position

R = TypeVar("R", bound=Row, covariant=True)


class Operation(StrEnum):
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class Commit(msgspec.Struct, gc=False):
    """The transaction that an event belongs to: known from its first row on, but for `count`."""

    transaction: int  # the database's own number
    position: Position
    committed_at: int  # microseconds since the epoch, UTC
    count: int = 0  # events in the transaction, all tables, once it is complete


class Event(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """`data` is the row as it is now; of a DELETE, the row that is gone. `before` is None for an INSERT only."""

    operation: Operation
    data: R
    before: R | None
    commit: Commit
    index: int  # within the transaction, from 0

    @property
    def table(self) -> str:
        return self.data.table

    @property
    def position(self) -> Position:
        return self.commit.position

    @property
    def committed_at(self) -> int:
        """Microseconds since the epoch."""
        return self.commit.committed_at

    @property
    def transaction(self) -> int:
        return self.commit.transaction

    @property
    def last(self) -> bool:
        return self.index == self.commit.count - 1

    def to_builtins(self) -> dict[str, JsonValue]:
        """As `astha tail --json` and ``/events`` show it, ready for ``json.dumps``."""
        return {
            "table": self.table,
            "operation": str(self.operation),
            "position": self.position,
            "transaction": self.transaction,
            "index": self.index,
            "last": self.last,
            "committed_at_us": self.committed_at,
            "data": self.data.to_builtins(),
            "before": None if self.before is None else self.before.to_builtins(),
        }
