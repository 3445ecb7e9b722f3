"""Commits whose outcome is always known.

A COMMIT whose answer is lost, or that the server answers with 40003, may have happened or may still happen. So every
transaction inserts a row with an id of its own into `commit_attempts`, in the batch with its COMMIT. To find the
outcome, the same id is inserted as not committed: if the row is there, the transaction was committed; if not, it never
will be, because its own insertion then fails. This is right for every verb, whatever it writes, and needs no knowledge
of it. See docs/decisions/0036-cockroachdb-registry.md.
"""

from __future__ import annotations

from collections import deque
from uuid import uuid4

import psycopg
from sqlalchemy import bindparam, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

_FORGET_AT_ONCE = 100
_CERTAIN = ("22", "23", "42")
"""Classes of errors after which nothing is committed: of values, constraints and syntax. So is 40001."""

RESOLVE = text(
    "INSERT INTO commit_attempts AS a (id, committed, created_at) VALUES (:id, false, :now) "
    "ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at RETURNING a.committed"
).bindparams(bindparam("id"), bindparam("now"))


class CommitAttempts:
    """Rows of transactions that are known to be committed are of no use, and are deleted by later ones."""

    def __init__(self) -> None:
        self._done: deque[str] = deque()

    async def commit(self, connection: AsyncConnection, now_ms: int) -> str | None:
        """Commits in one round trip. Returns the id of the attempt if the outcome is not known, else None."""
        attempt = uuid4().hex
        old = [self._done.popleft() for _ in range(_FORGET_AT_ONCE)] if len(self._done) >= _FORGET_AT_ONCE else []
        listed = ", ".join(f"'{done}'" for done in old)
        forget = f"DELETE FROM commit_attempts WHERE id IN ({listed}); " if old else ""
        insert = f"INSERT INTO commit_attempts (id, committed, created_at) VALUES ('{attempt}', true, {now_ms})"
        try:
            await connection.exec_driver_sql(f"{forget}{insert}; COMMIT")
        except DBAPIError as error:
            self._done.extend(old)
            if is_certain(error):
                raise
            return attempt
        self._done.append(attempt)
        return None

    async def resolve(self, connection: AsyncConnection, attempt: str, now_ms: int) -> bool:
        """Returns whether the attempt was committed. If not, it never will be."""
        found = bool((await connection.execute(RESOLVE, {"id": attempt, "now": now_ms})).scalar_one())
        if found:
            self._done.append(attempt)
        return found


def is_certain(error: DBAPIError) -> bool:
    """Whether a COMMIT that failed so has certainly not happened."""
    state = error.orig.sqlstate if isinstance(error.orig, psycopg.Error) else None
    return not error.connection_invalidated and state is not None and (state == "40001" or state[:2] in _CERTAIN)
