"""The contracts of sources and live sources, and the batches that they yield."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from astha.events import Transaction
from registry.position import Position


class Gap(msgspec.Struct, frozen=True):
    """Changes may be missing here, and positions may restart: every component refreshes.

    A `Started` follows. The source continues only when the consumer asks for the next batch. By then the consumer has
    persisted a pending refresh for every component, so the source may record the new server identity.
    """

    reason: str


class Progress(msgspec.Struct, frozen=True):
    """No subscribed change up to this position: a component with an empty queue has processed it."""

    position: Position


class Started(msgspec.Struct, frozen=True):
    """Connected or reconnected: every change after this position follows, some possibly again."""

    position: Position


Batch: TypeAlias = "Sequence[Transaction] | Gap | Progress | Started"


PositionUnit: TypeAlias = Literal["bytes", "changes", "nanoseconds"]
"""Of the difference of two positions: of WAL on PostgreSQL, rows of a change log, time on CockroachDB."""


class SourceStatus(msgspec.Struct, frozen=True):
    """For `/status`, `/readyz` and metrics."""

    connected: bool
    received: Position
    acknowledged: Position
    retained_bytes: int | None  # retained by the database for this reader
    wal_status: str | None
    detail: str | None
    server: Position | None = None  # the end of the database's log, if known
    silent_s: float | None = None  # since the server sent anything; None if it sends nothing by itself
    unit: PositionUnit = "bytes"


class Source(Protocol):
    """One reader of one registry. Reconnects by itself. Raises only ConfigError, which an operator has to correct, and
    LeadershipLost if the registry was replaced by another one.
    """

    def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        """Yields the transactions that have arrived, without waiting for larger batches.

        Starts after the position that was last acknowledged durably. Transactions may be repeated after a reconnect;
        their positions are then not above the last one seen. Cancelling closes the connection.
        """
        ...

    def acknowledge(self, position: Position) -> None:
        """Every component has durably processed this position: the database may discard its log. Never blocks."""
        ...

    def retained_for(self, position: Position) -> int:
        """Returns about how many bytes the database retains for a component at `position`."""
        ...

    def status(self) -> SourceStatus: ...

    async def close(self) -> None: ...


Replay: TypeAlias = "AsyncGenerator[Sequence[Transaction] | Progress, None]"


@runtime_checkable
class Replays(Protocol):
    """A source that can read retained changes again, beside its stream."""

    def replay(self, tables: frozenset[str], after: Position) -> Replay:
        """Yields every transaction after `after`, in order, then new ones as they arrive.

        `after` must not be below the acknowledged position. A replay acknowledges nothing and does not affect the
        stream. Raises SourceError if it can't start or breaks off: start again from the last position that was used.
        """
        ...


class LiveSource(Protocol):
    """The changes from now on, for caches. It keeps no position and retains nothing in the database."""

    def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        """Begins with a Gap and a Started, also after every interruption. Raises only ConfigError."""
        ...
