"""The rows of one endless statement, as they arrive, in libpq's single-row mode.

psycopg's `cursor.stream` returns one row per turn of the event loop and cancels the statement at its end, which waits
for the server. A changefeed has many rows at once after a mark, and ends with its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TypeAlias

import psycopg
from psycopg import pq

FeedRow: TypeAlias = tuple["bytes | None", "bytes | None", "bytes | None"]

_BINARY = 1


class RowStream:
    """One statement on a connection of its own. Every method raises psycopg.Error if the connection is broken."""

    def __init__(self, connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        self._pgconn = connection.pgconn
        self._ready: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> bool:
        """Whether the reader waits for the server: otherwise unread rows may be in the socket."""
        return self._ready is not None and not self._ready.done()

    def send(self, query: str) -> None:
        """Sends the statement, which has three columns. Its rows are in the binary format."""
        self._pgconn.send_query_params(query.encode(), None, result_format=_BINARY)
        self._pgconn.set_single_row_mode()
        self._pgconn.flush()

    def arrived(self, limit: int) -> Iterator[FeedRow]:
        """Returns at most `limit` rows that have arrived, without blocking. Raises the server's error, and
        StatementEnded after the last row.

        libpq reads some kilobytes from the socket at a time: it is empty only if reading it brings no row.
        """
        pgconn, consumed = self._pgconn, False
        while limit > 0:
            if pgconn.is_busy():
                if consumed:
                    return
                pgconn.consume_input()
                consumed = True
                continue
            consumed = False
            result = pgconn.get_result()
            if result is None:
                raise StatementEnded
            if result.status == pq.ExecStatus.SINGLE_TUPLE:
                limit -= 1
                yield result.get_value(0, 0), result.get_value(0, 1), result.get_value(0, 2)
            elif result.status == pq.ExecStatus.FATAL_ERROR:
                raise _error(result)

    async def readable(self) -> None:
        """Waits until the socket has something to read, or `wake` is called."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        socket = self._pgconn.socket
        loop.add_reader(socket, self.wake)
        try:
            await self._ready
        finally:
            loop.remove_reader(socket)
            self._ready = None

    def wake(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)


class StatementEnded(Exception):
    """The server has sent the last row."""


def _error(result: pq.abc.PGresult) -> psycopg.Error:
    return psycopg.errors.error_from_result(result)
