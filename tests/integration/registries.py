"""Registries to copy from and to: fresh ones on both backends, and one with every kind of row in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import (
    CatalogCommit,
    CompactionDraft,
    DeleteFileDraft,
    FileDraft,
    OffsetDraft,
    ProducerDraft,
    Registration,
    SegmentDraft,
    SnapshotDraft,
    TableDraft,
)
from registry.json_text import to_json_text
from registry.models import LAKE_IDENTITY, CatalogNamespace, CatalogRequest, CatalogTable, Row
from registry.stores.sql.consistent_read import SqlBulkLoad, SqlReadAndLoad

NewUrl = Callable[[str], str]
"""Takes a backend's name, and returns the URL of a database without a registry."""

AWKWARD = 'Ünïcode "quotes" \\back\\slash {brace}, NULL \u2028 \U0001f980 日本'


@pytest.fixture(scope="session")
def copy_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres() as server:
        yield server


@pytest.fixture
def new_url(copy_server: EmbeddedPostgres, tmp_path: Path) -> NewUrl:
    numbers = count()

    def new(backend: str) -> str:
        if backend == "sqlite":
            return f"sqlite:///{tmp_path}/registry{next(numbers)}.db"
        name = f"copy_{tmp_path.name}_{next(numbers)}".lower().replace("-", "_")
        with psycopg.connect(copy_server.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return copy_server.url(name)

    return new


async def fill(store: MetadataStore, *, segments: int = 25) -> None:
    """At least one row of every copied table, with NULLs and strings that are easily corrupted."""
    await _fill_streams(store, segments)
    await _fill_lake(store)
    await store.record_intents([f"s3://bucket/{AWKWARD}", "s3://bucket/other"], purpose="insert", owner="me")
    await _fill_journal(store)
    await _fill_catalog(store)
    await store.record_lake_locations({"warehouse": f"s3://bucket/{AWKWARD}"})
    await _fill_inserts(store)


async def _fill_inserts(store: MetadataStore) -> None:
    table = await store.get_table("db", "empty")
    assert table is not None
    draft = FileDraft(file_path="file:///lake/e/1", file_size=1, row_count=1, schema_version=1)
    await store.register_files([Registration(table_id=table.id, files=[draft], insert_id=AWKWARD)])


async def _fill_catalog(store: MetadataStore) -> None:
    """Rows that PyIceberg and other engines write, for which the store has no verbs."""
    await store.record_source_identity(LAKE_IDENTITY, "this-lake")
    assert isinstance(store, SqlReadAndLoad)
    async with store._transaction() as connection:
        load = SqlBulkLoad(store, connection)
        await load.add([CatalogTable("astha", "db", "täble", "s3://lake/t/2.json", "s3://lake/t/1.json", "TABLE"),
                        CatalogTable("other", "db", AWKWARD, None, None, None)])  # fmt: skip
        await load.add([CatalogNamespace("astha", "db", "exists", "true"), CatalogNamespace("other", "db", "x", "")])
    table = await store.get_table("db", "täble")
    assert table is not None
    deletes = DeleteFileDraft(file_path=AWKWARD, file_size=1, content="equality", row_count=1, sequence_number=2,
                              equality_ids=to_json_text([1]))  # fmt: skip
    commit = CatalogCommit(catalog="astha", namespace="db", name="täble", expected="s3://lake/t/2.json",
                           location="s3://lake/t/3.json", table_id=table.id, deletes_added=[deletes], engine=AWKWARD,
                           snapshot_id=2**62, operation="delete")  # fmt: skip
    await store.commit_catalog([commit], request=CatalogRequest("key", "fingerprint", AWKWARD))


async def _fill_streams(store: MetadataStore, segments: int) -> None:
    await store.create_topic("events", 3, retention_ms=None, config={"a": [1, None, {"ü": AWKWARD}], "b": 1.5})
    await store.create_topic("NULL", 1, retention_ms=0)
    await store.create_topic("日本", 2, retention_ms=9_000)
    await store.add_segments(
        [
            SegmentDraft("events", number % 3, number * 10, number * 10 + 9, 10, 2**40, "bucket", f"ключ/{number}", 7)
            for number in range(segments)
        ]
    )
    last = SegmentDraft("日本", 1, 2**62, 2**62 + 1, 2, 0, "bucket", AWKWARD, 0, -1, 2**62, AWKWARD)
    await store.add_segments([last], producers=[ProducerDraft("日本", 1, "prodücer", 1, 0, 1, 2**62, 2)])
    await store.ensure_consumer_group("gröup")
    await store.commit_offsets("gröup", [OffsetDraft("events", 0, 5, None), OffsetDraft("events", 1, 6, AWKWARD)])
    await store.register_agent("agent-1", "10.0.0.1:9", metadata={"cpu": 2, "notes": AWKWARD})
    await store.register_agent("agent-2", "10.0.0.2:9", zone="z", group="g")
    await store.acquire_group_leases("gröup", [("events", 0), ("events", 1)], "agent-2", 60_000)
    await store.acquire_partition_lease("events", 0, "agent-1", 60_000)
    released = await store.acquire_partition_lease("events", 1, "agent-2", 60_000)
    await store.release_partition_lease(released)  # a lease without a holder keeps its epoch


async def _fill_lake(store: MetadataStore) -> None:
    schema = to_json_text({"fields": [{"id": 1, "name": "größe", "doc": AWKWARD}]})
    table = await store.create_table("db", "täble", "s3://lake/t", TableDraft(schema=schema))
    await store.create_table("db", "empty", "file:///lake/e", TableDraft(schema=schema))
    await store.add_schema_version(table.id, TableDraft(schema=to_json_text({"fields": []}), sort_by=to_json_text([1])),
                                   expected=1)  # fmt: skip
    statistics = to_json_text({"1": {"value_count": 3, "lower": "AA=="}})
    files = await store.add_files(
        table.id,
        [
            FileDraft(file_path=f"s3://lake/t/{day}.parquet", file_size=10, row_count=3, schema_version=1 + day % 2,
                      partition_path=f"dáy={day}", checksum=AWKWARD if day else None, is_compressed=bool(day % 2),
                      column_stats=statistics if day else None)
            for day in range(5)
        ],
    )  # fmt: skip
    merged = FileDraft(file_path="s3://lake/t/merged.parquet", file_size=20, row_count=6, schema_version=2)
    await store.swap_files(table.id, files[:2], [merged], operation_id="swap-1")
    await store.remove_files(table.id, files[4:], reason=AWKWARD)
    await store.request_snapshot(table.id, reason=None)
    draft = SnapshotDraft(snapshot_id=2**60, timestamp=1, manifest_list=AWKWARD, schema_id=0, tag="v1", reason="why")
    await store.record_snapshot(table.id, draft)


async def _fill_journal(store: MetadataStore) -> None:
    draft = CompactionDraft(table_id=1, table_name="db.täble", partition_path=AWKWARD, rule="small", reason=AWKWARD)
    await store.record_compactions([draft, CompactionDraft(table_id=2, table_name="db.empty", rule="small")])
    await store.begin_compaction(draft, operation_id="op-1", owner="me", stale_after_ms=1)


async def contents(store: MetadataStore, kinds: tuple[type[Row], ...]) -> dict[str, list[Row]]:
    async with store.consistent_read() as snapshot:
        return {kind.table: [row async for rows in snapshot.rows(kind, page=7) for row in rows] for kind in kinds}
