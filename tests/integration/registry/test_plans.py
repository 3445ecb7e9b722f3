"""The questions asked all the time are answered by an index, on both databases."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import event

from registry.contract import MetadataStore
from registry.documents import Document
from registry.drafts import OffsetDraft
from registry.engines import parse_url, sqlite_path
from registry.models import Agent
from registry.schema import table_of
from tests.doubles.clock import ManualClock
from tests.samples import TABLE, file, segment


@asynccontextmanager
async def _asked(store: MetadataStore) -> AsyncIterator[list[tuple[str, Any]]]:
    """The statements that reach the driver, as they reach it: the verbs' real queries."""
    seen: list[tuple[str, Any]] = []
    engine = store._engine.sync_engine  # type: ignore[attr-defined]

    def listen(connection: object, cursor: object, statement: str, parameters: Any, *rest: object) -> None:
        seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", listen)
    yield seen
    event.remove(engine, "before_cursor_execute", listen)


def _plan(url: str, statement: str, parameters: Any) -> str:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(parse_url(url)))) as connection:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            return "\n".join(str(row[3]) for row in rows)
    with psycopg.connect(url) as connection_:
        rows = connection_.execute(f"EXPLAIN {statement}".encode(), parameters).fetchall()
        return "\n".join(row[0] for row in rows)


def _analyse(url: str) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(parse_url(url)))) as connection:
            connection.execute("ANALYZE")
            connection.commit()
        return
    with psycopg.connect(url, autocommit=True) as connection_:
        connection_.execute("ANALYZE")


@pytest.fixture
async def filled(store: MetadataStore, url: str, clock: ManualClock) -> MetadataStore:
    """Enough rows that reading all of them is not the better plan."""
    await store.create_topic("orders", 50)
    for partition in range(50):
        await store.add_segments([segment(base, partition=partition) for base in range(0, 2_000, 10)])
    for group in range(40):
        await store.ensure_consumer_group(f"group-{group}")
        await store.commit_offsets(f"group-{group}", [OffsetDraft("orders", n, 1) for n in range(50)])
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.add_files(table.id, [file(f"s3://lake/t/{n}", partition=f"d={n % 100}") for n in range(5_000)])
    async with store._writing() as connection:  # type: ignore[attr-defined]
        agents = [
            Agent(f"agent-{n}", "host:1", "", "", clock.now_ms() - n * 1_000, 0, Document("{}")) for n in range(2_000)
        ]
        rows = [tuple(getattr(agent, name) for name in Agent.__struct_fields__) for agent in agents]
        await store._insert_many(connection, table_of(Agent), Agent.__struct_fields__, rows)  # type: ignore[attr-defined]
    _analyse(url)
    return store


QUESTIONS: dict[str, tuple[str, str, Callable[[MetadataStore], Awaitable[object]]]] = {
    "offset lookup": (
        "segments_topic_partition_id_base_offset", "segments",
        lambda store: store.find_segment_for_offset("orders", 7, 1_234),
    ),
    "segments from an offset": (
        "segments_topic_partition_id_base_offset", "segments",
        lambda store: store.get_segments("orders", 7, from_offset=1_234, limit=10),
    ),
    "consumer offset": (
        "consumer_offsets", "consumer_offsets", lambda store: store.get_committed_offset("group-7", "orders", 7)
    ),
    "files by partition": (
        "table_files_table_id_partition_path_id", "table_files",
        lambda store: store.list_files(1, partition_path="d=7", limit=20),
    ),
    "files by path": (
        "table_files_table_id_file_path", "table_files",
        lambda store: store.get_files(1, ["s3://lake/t/7", "s3://lake/t/8"]),
    ),
    "live agents": (
        "agents_last_heartbeat", "agents", lambda store: store.list_agents(alive_within_ms=5_000)
    ),
}  # fmt: skip


async def test_an_index_answers(filled: MetadataStore, url: str, subtests: pytest.Subtests) -> None:
    sqlite = url.startswith("sqlite")
    for name, (index, table, ask) in QUESTIONS.items():
        async with _asked(filled) as seen:
            assert await ask(filled)
        ((statement, parameters),) = seen
        plan = _plan(url, statement, parameters)
        with subtests.test(name):
            assert (f"SCAN {table}" if sqlite else f"Seq Scan on {table}") not in plan, plan
            # SQLite gives the indexes of its constraints names of its own.
            assert index in plan or (sqlite and f"sqlite_autoindex_{table}" in plan), plan
