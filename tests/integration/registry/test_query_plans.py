"""Frequent queries use an index, on both databases."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import event

from registry.contract import MetadataStore
from registry.engines import parse_url, sqlite_path
from registry.inputs import OffsetDraft
from registry.json_text import JsonText
from registry.models import Agent
from registry.schema import metadata, table_of
from registry.stores.postgres.statements import ADD_SEGMENTS
from tests.doubles.clock import ManualClock
from tests.fixtures.stores import OpenStore
from tests.samples import TABLE, decision, file, segment


@asynccontextmanager
async def _asked(store: MetadataStore) -> AsyncIterator[list[tuple[str, Any]]]:
    """Records the statements that reach the driver: the verbs' actual queries."""
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
    """Enough rows that a full scan is not the better plan."""
    await store.create_topic("orders", 2_000)
    for partition in range(50):
        await store.add_segments([segment(base, partition=partition) for base in range(0, 2_000, 10)])
    for group in range(40):
        await store.ensure_consumer_group(f"group-{group}")
        await store.commit_offsets(f"group-{group}", [OffsetDraft("orders", n, 1) for n in range(50)])
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.add_files(table.id, [file(f"s3://lake/t/{n}", partition=f"d={n % 100}") for n in range(5_000)])
    await store.record_compactions([decision(f"d={n}", table_id=n % 50) for n in range(5_000)])
    async with store._transaction() as connection:  # type: ignore[attr-defined]
        agents = [
            Agent(f"agent-{n}", "host:1", "", "", clock.now_ms() - n * 1_000, 0, JsonText("{}")) for n in range(2_000)
        ]
        rows = [tuple(getattr(agent, name) for name in Agent.__struct_fields__) for agent in agents]
        await store._insert_many(connection, table_of(Agent), Agent.__struct_fields__, rows)  # type: ignore[attr-defined]
    _analyse(url)
    return store


class Question(NamedTuple):
    ask: Callable[[MetadataStore], Awaitable[object]]
    named: str
    columns: list[str]  # which the index narrows down by


QUESTIONS = {
    "offset lookup": Question(
        lambda store: store.find_segment_for_offset("orders", 7, 1_234),
        "segments_topic_partition_id_base_offset", ["topic", "partition_id", "base_offset"],
    ),
    "segments from an offset": Question(
        lambda store: store.get_segments("orders", 7, from_offset=1_234, limit=10),
        "segments_topic_partition_id_base_offset", ["topic", "partition_id", "base_offset"],
    ),
    "segments from the end": Question(
        lambda store: anext(store.stream_segments_backwards("orders", 7)),
        "segments_topic_partition_id_base_offset", ["topic", "partition_id", "base_offset"],
    ),
    "consumer offset": Question(
        lambda store: store.get_committed_offset("group-7", "orders", 7),
        "pk_consumer_offsets", ["group_id", "topic", "partition_id"],
    ),
    "files by partition": Question(
        lambda store: store.list_files(1, partition_path="d=7", limit=20),
        "table_files_table_id_partition_path_id", ["table_id", "partition_path"],
    ),
    "files by path": Question(
        lambda store: store.get_files(1, ["s3://lake/t/7", "s3://lake/t/8"]),
        "table_files_table_id_file_path", ["table_id", "file_path"],
    ),
    "newest decisions": Question(
        lambda store: store.list_compactions(table_id=7, limit=20),
        "compactions_table_id_decided_at_id", ["table_id"],
    ),
    "older decisions": Question(
        lambda store: store.list_compactions(before=(2**62, 1), limit=20),
        "compactions_decided_at_id", ["decided_at"],
    ),
    "live agents": Question(
        lambda store: store.list_agents(alive_within_ms=5_000), "agents_last_heartbeat", ["last_heartbeat"]
    ),
}  # fmt: skip


async def test_frequent_queries_use_an_index(filled: MetadataStore, url: str, subtests: pytest.Subtests) -> None:
    sqlite = url.startswith("sqlite")
    for name, question in QUESTIONS.items():
        async with _asked(filled) as seen:
            assert await question.ask(filled)
        ((statement, parameters),) = seen
        plan = _plan(url, statement, parameters)
        with subtests.test(name):
            assert "Seq Scan on" not in plan, plan
            assert not re.search(r"SCAN (?!each)", plan), plan
            uses = _uses(plan, question.named, sqlite)
            assert uses, plan
            for condition in uses:
                assert all(re.search(rf"\b{column}\b", condition) for column in question.columns), plan


def _uses(plan: str, index: str, sqlite: bool) -> list[str]:
    """Returns the condition of each index search."""
    if sqlite:  # which names the indexes of constraints itself: by table and number
        found = re.findall(r"SEARCH .* INDEX (\S+) \((.*)\)", plan)
        return [
            condition
            for name, condition in found
            if name.endswith(index)
            or any(f"autoindex_{table}_" in name and table in index for table in metadata.tables)
        ]
    found = re.findall(r"using (\S+) on .*\n(?:.*Sort.*\n)?.*Index Cond: (.*)", plan)
    found += re.findall(r"Bitmap Index Scan on (\S+) .*\n.*Index Cond: (.*)", plan)
    return [condition for name, condition in found if name.endswith(index)]


async def test_registering_files_uses_indexes_in_a_table_with_outdated_statistics(
    store: MetadataStore, url: str
) -> None:
    """PostgreSQL estimates such a table as small; a plan without index lookups would grow with the table."""
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    for turn in range(3):
        await store.add_files(table.id, [file(f"s3://lake/t/{turn}/{n}") for n in range(1_000)])
    async with _asked(store) as seen:
        await store.add_files(table.id, [file(f"s3://lake/t/new/{n}") for n in range(1_000)])
    for statement, parameters in seen:
        if "table_files" not in statement or statement.startswith("INSERT"):
            continue
        plan = _plan(url, statement, parameters)
        assert not re.search(r"Seq Scan on table_files|SCAN table_files", plan), plan
        for condition in _uses(plan, "table_files_table_id_file_path", url.startswith("sqlite")):
            assert "file_path" in condition, plan


def test_a_plan_made_for_empty_tables_uses_keys(postgres_url: str) -> None:
    """As the plan of a prepared statement, in a process that started before the data was written."""
    statement = ADD_SEGMENTS
    parameters = ", ".join(["NULL"] * len(statement.names))
    with psycopg.connect(postgres_url) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE it AS {statement.text}".encode())
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN EXECUTE it ({parameters})".encode()))
    assert "Seq Scan" not in plan, plan
    assert plan.count("Index Cond") == 8, plan  # five kinds of rows that it locks, three that it changes
    assert "Join Filter" not in plan, plan  # each row with each


async def test_a_few_of_many_rows_are_looked_up_by_key(postgres_url: str, opened: OpenStore) -> None:
    store = await opened(postgres_url)
    await store.create_topic("orders", 20_000)
    _analyse(postgres_url)
    async with _asked(store) as seen:
        assert len(await store.get_partitions([("orders", number) for number in range(0, 20_000, 100)])) == 200
    ((statement, parameters),) = seen
    async with store._autocommit() as connection:  # type: ignore[attr-defined]
        rows = await connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
        plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan" not in plan, plan
