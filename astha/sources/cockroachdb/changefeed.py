"""One changefeed: its statement, its rows as batches, and what its errors mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
from psycopg.conninfo import make_conninfo

from astha.errors import ConfigError, SourceError, SourceLost, SourceReset
from astha.events import Transaction
from astha.sources.cockroachdb.decode import LOOKBACK_NS, ChangefeedDecoder
from astha.sources.cockroachdb.row_stream import RowStream, StatementEnded
from astha.sources.contract import Progress
from registry.clock import Clock
from registry.hlc import timestamp_of
from registry.models import PUBLISHED
from registry.position import Position

_ROWS_PER_TURN = 2_000
"""Rows decoded before the reader yields to the event loop: some milliseconds."""

_RESETS = {
    "gc threshold": "the server has garbage collected the changes after the acknowledged position (gc.ttlseconds)",
    "truncate": "a table was truncated, which a changefeed does not list",
    "schema change occurred": "the schema of a table was changed",
    "was dropped": "a table was dropped or replaced",
    "does not exist": "a table was dropped or replaced",
    "is offline": "a table was taken offline, by a restore or an import",
}
"""What the message of a changefeed that can't be resumed contains, and what it means."""


class Changefeed:
    """One EXPERIMENTAL CHANGEFEED, from its start to its end, on a connection of its own. Not reusable."""

    def __init__(self, connection: psycopg.AsyncConnection[tuple[object, ...]], clock: Clock) -> None:
        self._connection = connection
        self._rows = RowStream(connection)
        self._clock = clock
        self._heard = clock.monotonic()
        self._broken: SourceError | None = None

    @classmethod
    async def open(cls, conninfo: str, clock: Clock) -> Changefeed:
        try:
            connection = await psycopg.AsyncConnection.connect(
                make_conninfo(conninfo, application_name="astha stream"), autocommit=True
            )
        except psycopg.OperationalError as error:
            raise SourceLost(f"can't connect for the changefeed: {error}") from error
        return cls(connection, clock)

    def start(self, schema: str, after: Position, resolved_s: float) -> None:
        """Requests every change after `after`, and those shortly before it. The server's errors come from `batches`."""
        self._heard = self._clock.monotonic()
        try:
            self._rows.send(statement(schema, Position(after - LOOKBACK_NS), resolved_s))
        except psycopg.Error as error:
            raise SourceLost(f"can't start the changefeed: {error}") from error

    @property
    def silent_s(self) -> float:
        """Seconds since the server sent anything. It sends resolved marks even if nothing changes."""
        return self._clock.monotonic() - self._heard if self._rows.waiting else 0.0

    async def batches(self, decoder: ChangefeedDecoder) -> AsyncIterator[list[Transaction] | Progress]:
        """Yields the transactions of each resolved mark, and the mark itself.

        Raises SourceLost if the changefeed can be resumed, SourceReset if it can't, and ConfigError for what an
        operator has to correct.
        """
        while True:
            count = 0
            try:
                for table, key, value in self._rows.arrived(_ROWS_PER_TURN):
                    count += 1
                    resolved = None if value is None else decoder.feed(table, key, value)
                    if resolved is None:
                        continue
                    if resolved.transactions:
                        yield resolved.transactions
                    yield Progress(resolved.position)
            except StatementEnded:
                raise SourceLost("the changefeed has ended") from None
            except psycopg.Error as error:
                raise changefeed_error(error) from error
            if count:
                self._heard = self._clock.monotonic()
                await asyncio.sleep(0)
            elif self._broken is None:
                await self._rows.readable()
                self._heard = self._clock.monotonic()
            if self._broken is not None:
                raise self._broken

    def fail(self, error: SourceError) -> None:
        """Ends `batches` with this error. For a caller that knows that the changefeed is unusable."""
        self._broken = error
        self._rows.wake()

    async def close(self) -> None:
        """The server ends a changefeed whose client is gone."""
        await self._connection.close()


def statement(schema: str, after: Position, resolved_s: float) -> str:
    """Watches all published tables: positions depend on the commits of all (see `decode`). Names are constants of this
    code or settings. A change of the schema ends the changefeed.
    """
    watched = ", ".join(f'"{schema}"."{kind.table}"' for kind in PUBLISHED)
    interval = f"{max(round(resolved_s * 1000), 1)}ms"
    return (
        f"EXPERIMENTAL CHANGEFEED FOR {watched} WITH updated, mvcc_timestamp, diff, "
        # Marks are not sent more often than min_checkpoint_frequency, which is 30 s by default.
        f"resolved = '{interval}', min_checkpoint_frequency = '{interval}', "
        f"initial_scan = 'no', cursor = '{timestamp_of(after)}', "
        "schema_change_events = 'column_changes', schema_change_policy = 'stop'"
    )


def changefeed_error(error: psycopg.Error) -> SourceError | ConfigError:
    """Translates the error that ended a changefeed. Whatever is not known may pass: the changefeed is resumed."""
    message = (error.diag.message_primary or str(error)).strip()
    lower = message.lower()
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return ConfigError(f"the changefeed is refused: {message}: run `astha check`, which names what the role lacks")
    if "rangefeed" in lower and "enabled" in lower:
        return ConfigError(
            "the changefeed is refused: run `SET CLUSTER SETTING kv.rangefeed.enabled = true` on the cluster"
        )
    for part, meaning in _RESETS.items():
        if part in lower:
            return SourceReset(f"{meaning}: {message}")
    return SourceLost(f"the changefeed broke: {message}")
