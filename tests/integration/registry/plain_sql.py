"""SQL past the store, on both backends."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg

from registry.engines import parse_url, sqlite_path


def execute_sql(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(parse_url(url)))) as connection:
            connection.execute(statement)
            connection.commit()
    else:
        with psycopg.connect(url, autocommit=True) as connection_:
            connection_.execute(statement.encode())


def select(url: str, query: str) -> list[tuple[object, ...]]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(parse_url(url)))) as connection:
            return connection.execute(query).fetchall()
    with psycopg.connect(url) as connection_:
        return connection_.execute(query.encode()).fetchall()
