"""A CockroachDB cluster: `make cockroach URL=...` passes its URL."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

import psycopg
from sqlalchemy import URL, make_url

from registry.cockroachdb.schema import commit_attempts
from registry.migrate import migrate
from registry.schema import metadata

VARIABLE = "COCKROACH_URL"
_TABLES = (*metadata.sorted_tables, commit_attempts)
_USED = "SELECT " + ", ".join(f'EXISTS (SELECT 1 FROM "{table.name}")' for table in _TABLES)
_numbers = itertools.count(1)


class CockroachCluster:
    """Tests take turns with its databases: creating one takes seconds, emptying it does not."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._migrated: list[str] = []
        self._made = ExitStack()

    def close(self) -> None:
        """Drops the databases."""
        self._made.close()

    @contextmanager
    def registry(self) -> Iterator[str]:
        """Gives a migrated, empty database."""
        if not self._migrated:
            made = self._made.enter_context(self.database())
            migrate(made)
            self._migrated.append(made)
        url = self._migrated.pop()
        yield url
        with psycopg.connect(url.replace("cockroachdb", "postgresql", 1), autocommit=True) as connection:
            while not _emptied(connection):
                pass
        self._migrated.append(url)

    @staticmethod
    def backends() -> list[str]:
        """The backend of tests that run over every backend: only if there is a cluster."""
        return ["cockroach"] if os.environ.get(VARIABLE) else []

    @classmethod
    def given(cls) -> Self:
        return cls(os.environ[VARIABLE])

    @contextmanager
    def database(self) -> Iterator[str]:
        """Creates a database, and drops it in the end."""
        name = f"astha_test_{os.getpid()}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield shown(self._url.set(database=name))
        finally:
            self.execute(f"DROP DATABASE {name} CASCADE")

    def execute(self, statement: str) -> None:
        with psycopg.connect(shown(self._url.set(drivername="postgresql")), autocommit=True) as connection:
            connection.execute(statement.encode())


def _emptied(connection: psycopg.Connection) -> bool:
    """Deletes all rows. Returns whether there were none: a cancelled statement of the test may still be under way."""
    try:
        used = connection.execute(_USED.encode()).fetchone()
        assert used is not None
        filled = [table for table, has_rows in zip(_TABLES, used, strict=True) if has_rows]
        for table in reversed(filled):
            connection.execute(f'DELETE FROM "{table.name}"'.encode())
    except psycopg.errors.SerializationFailure:
        return False
    return not filled


def shown(url: URL) -> str:
    return url.render_as_string(hide_password=False)
