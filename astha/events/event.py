"""The change of one row."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from astha.events.traceparent import TraceParent
from registry.json_text import JsonValue
from registry.models import Row
from registry.position import Position

R = TypeVar("R", bound=Row, covariant=True)


class Operation(StrEnum):
    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class Commit(msgspec.Struct, gc=False):
    """The transaction of an event. Known when its first row arrives, except for `count`."""

    transaction: int  # the database's transaction id
    position: Position
    committed_at: int  # microseconds since the epoch, UTC
    count: int = 0  # events in the transaction, all tables, once it is complete
    trace: TraceParent | None = None  # the span that its deliveries belong to, if spans of it are recorded


class Event(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """`data` is the new row; for a DELETE, the deleted row. `before` is None only for an INSERT."""

    operation: Operation
    data: R
    before: R | None
    commit: Commit
    index: int  # within the transaction, from 0

    @property
    def after(self) -> R | None:
        """The new row; None for a DELETE."""
        return None if self.operation is Operation.DELETE else self.data

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
        """Returns what `astha tail --json` and ``/events`` show, ready for ``json.dumps``."""
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
