"""libpq's COPY BOTH mode, which replication uses: the one module that relies on psycopg's internals.

psycopg 3 has no replication API (psycopg#71), but exposes libpq's functions in `psycopg.pq`. `generators` and `waiting`
are not documented; `tests/unit/astha/sources/postgres/test_copy_both.py` fails if an upgrade changes any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psycopg
from psycopg import generators, pq, waiting

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


class CopyBoth:
    """A connection after START_REPLICATION. Every method raises psycopg.Error if the connection is broken."""

    def __init__(self, connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        self._pgconn = connection.pgconn
        self.get_copy_data: Callable[[int], tuple[int, memoryview]] = self._pgconn.get_copy_data
        """PQgetCopyData: with 1 it does not block. Returns the number of bytes and the data; 0 if no complete message
        is in memory, below 0 at the end of the stream.
        """

    @property
    def socket(self) -> int:
        return self._pgconn.socket

    def consume_input(self) -> None:
        """Reads what the socket has, some kilobytes at a time, without blocking."""
        self._pgconn.consume_input()

    def send(self, message: bytes) -> None:
        self._pgconn.put_copy_data(message)
        self._pgconn.flush()

    async def errors(self, timeout_s: float) -> list[PGresult]:
        """Returns the server's errors after the stream has ended, waiting for them at most `timeout_s`."""
        results = await waiting.wait_async(generators.fetch_many(self._pgconn), self.socket, timeout=timeout_s)
        return [result for result in results if result.status == pq.ExecStatus.FATAL_ERROR]


def sqlstate(error: PGresult) -> bytes | None:
    return error.error_field(pq.DiagnosticField.SQLSTATE)
