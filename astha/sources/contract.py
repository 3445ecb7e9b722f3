"""The contract of a source."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from astha.events import Transaction
from registry.position import Position


class Gap(msgspec.Struct, frozen=True):
    """Changes may be missing from the stream here, and positions may start anew: everybody refreshes.

    A `Started` follows. The source goes on only when it is asked for the next batch; by then everybody's debt is on
    paper, so it may record what it has found as known.
    """

    reason: str


class Progress(msgspec.Struct, frozen=True):
    """Nothing for us up to this position: whoever has nothing in hand may count it as done."""

    position: Position


class Started(msgspec.Struct, frozen=True):
    """Connected, or connected again: everything after this position will come, some of it maybe again."""

    position: Position


Batch: TypeAlias = "Sequence[Transaction] | Gap | Progress | Started"


class SourceStatus(msgspec.Struct, frozen=True):
    """For `/status`, `/readyz` and metrics."""

    connected: bool
    received: Position
    acknowledged: Position
    retained_bytes: int | None  # what the database keeps on our account
    wal_status: str | None
    detail: str | None
    server: Position | None = None  # where the database itself is, as far as known
    silent_s: float | None = None  # since anything was heard of it, where it is expected to be heard
    unit: Literal["bytes", "changes"] = "bytes"  # of the difference of two positions


class Source(Protocol):
    """One reader of one registry. Reconnects by itself; raises only what nobody but a person can mend (ConfigError),
    and Fenced when the registry was replaced by another one.
    """

    def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        """Batches of what has been received together; never waits for more than there is.

        Starts after the position that was last acknowledged durably. Transactions may come again after a
        reconnect (positions are then not above the last ones seen). Cancelling closes the connection.
        """
        ...

    def acknowledge(self, position: Position) -> None:
        """Everything at or below is durably done by everybody who counts: the database may forget it. Never blocks."""
        ...

    def retained_for(self, position: Position) -> int:
        """About how many bytes the database keeps for somebody who has done everything up to `position`."""
        ...

    def status(self) -> SourceStatus: ...

    async def close(self) -> None: ...


Replay: TypeAlias = "AsyncGenerator[Sequence[Transaction] | Progress, None]"


@runtime_checkable
class Replays(Protocol):
    """A source that can read again, beside its stream, what the database still keeps."""

    def replay(self, tables: frozenset[str], after: Position) -> Replay:
        """Every transaction after `after`, in order, and then what comes; only as fast as it is asked for.

        `after` is not before what was acknowledged. Neither acknowledges anything nor disturbs the stream. SourceError
        if it can't be had, or breaks off: begin again from the last position that was used.
        """
        ...


class Follower(Protocol):
    """The changes from now on, for caches: remembers nothing, holds nothing back, acknowledges nothing."""

    def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        """Begins with a Gap and a Started, and does so again after every interruption. Raises ConfigError only."""
        ...
