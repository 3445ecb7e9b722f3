"""The database enforces its constraints, whatever program writes."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest

from registry.contract import MetadataStore
from registry.engines import parse_url, sqlite_path
from registry.schema import metadata
from tests.samples import ONE_OF_EACH


class Raw:
    """SQL without the store, as from a shell."""

    def __init__(self, url: str) -> None:
        self._connection: Any
        if url.startswith("sqlite"):
            self._connection = sqlite3.connect(sqlite_path(parse_url(url)), isolation_level=None)
            self._connection.execute("PRAGMA foreign_keys = ON")
        else:
            self._connection = psycopg.connect(url, autocommit=True)

    def execute(self, statement: str) -> int:
        count: int = self._connection.execute(statement).rowcount
        return count

    def count(self, table: str) -> int:
        (count,) = self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(count)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
async def raw(url: str, store: MetadataStore) -> Any:
    async with store.load() as load:
        for row in ONE_OF_EACH:
            await load.add([row])
    opened = Raw(url)
    yield opened
    opened.close()


VIOLATIONS = [
    # checks
    "UPDATE topics SET partition_count = 0",
    "UPDATE topics SET retention_ms = -1",
    "INSERT INTO topics VALUES ('', 1, NULL, '{}', 0, 0)",
    "UPDATE topics SET config = 'not json'",
    "UPDATE topics SET config = NULL",
    "INSERT INTO partitions VALUES ('orders', -1, 0, 0, 0)",
    "UPDATE partitions SET high_watermark = -1",
    "UPDATE segments SET base_offset = -1",
    "UPDATE segments SET end_offset = base_offset - 1",
    "UPDATE segments SET record_count = -1",
    "UPDATE segments SET size_bytes = -1",
    "UPDATE segments SET byte_offset = -1",
    "INSERT INTO consumer_groups VALUES ('', 0, 0)",
    "UPDATE consumer_offsets SET committed_offset = -1",
    "INSERT INTO agents VALUES ('', 'a', '', '', 0, 0, '{}')",
    "UPDATE agents SET metadata = '{'",
    "UPDATE partition_leases SET epoch = 0",
    "UPDATE tables SET row_count = -1",
    "UPDATE tables SET total_size = -1",
    "UPDATE tables SET file_count = -1",
    "UPDATE tables SET status = 'gone'",
    "UPDATE tables SET name = ''",
    "UPDATE tables SET \"database\" = ''",
    "UPDATE table_metadata SET schema_version = 0",
    "UPDATE table_metadata SET schema = ''",
    "UPDATE table_metadata SET engine_config = ''",
    "UPDATE table_metadata SET partition_by = ''",
    "UPDATE table_metadata SET sort_by = ''",
    "UPDATE table_metadata SET properties = ''",
    "UPDATE table_files SET file_size = -1",
    "UPDATE table_files SET row_count = -1",
    "UPDATE table_files SET operation = 'magic'",
    "UPDATE table_files SET operation = 'compaction', operation_id = NULL",
    "UPDATE table_files SET column_stats = '['",
    "UPDATE table_stats SET row_count = -1",
    "UPDATE table_stats SET file_count = -1",
    "UPDATE table_stats SET total_size = -1",
    "UPDATE table_inserts SET row_count = -1",
    "UPDATE table_inserts SET file_count = -1",
    "UPDATE lake_locations SET name = 'elsewhere'",
    'UPDATE table_snapshots SET "trigger" = \'whim\'',
    "UPDATE table_snapshots SET status = 'lost'",
    "UPDATE table_snapshots SET snapshot_id = NULL",
    "UPDATE table_snapshots SET summary = 'x'",
    "UPDATE ledger SET refresh_visibility = 'x'",
    "UPDATE daemon_lease SET epoch = 0",
    "UPDATE daemons SET role = 'boss'",
    "UPDATE daemons SET components = 'x'",
    "UPDATE files_awaiting_deletion SET file = 'x'",
    "UPDATE compactions SET input_files = -1",
    "UPDATE compactions SET input_bytes = -1",
    "UPDATE compactions SET output_files = -1",
    "UPDATE compactions SET output_bytes = -1",
    "UPDATE compactions SET row_count = -1",
    "UPDATE compactions SET status = 'over'",
    'UPDATE compactions SET "trigger" = \'whim\'',
    "UPDATE compactions SET explanation = 'x'",
    "UPDATE compactions SET owner = NULL",
    "UPDATE segment_objects SET live_segments = 0",
    "UPDATE segment_objects SET size_bytes = -1",
    "UPDATE producer_sequences SET epoch = -1",
    "UPDATE producer_sequences SET last_sequence = -1",
    "UPDATE group_leases SET epoch = 0",
    "UPDATE iceberg_commits SET added_files = -1",
    "UPDATE iceberg_commits SET removed_files = -1",
    "UPDATE iceberg_commits SET added_rows = -1",
    "UPDATE iceberg_commits SET removed_rows = -1",
    "UPDATE iceberg_commits SET added_delete_files = -1",
    "UPDATE iceberg_commits SET removed_delete_files = -1",
    "UPDATE table_delete_files SET file_size = -1",
    "UPDATE table_delete_files SET row_count = -1",
    "UPDATE table_delete_files SET content = 'data'",
    "UPDATE table_delete_files SET equality_ids = '['",
    # types
    "UPDATE segments SET size_bytes = 'many'",
    "UPDATE partitions SET high_watermark = NULL",
    "UPDATE table_files SET file_path = NULL",
    # keys
    "INSERT INTO topics SELECT * FROM topics",
    "INSERT INTO partitions SELECT * FROM partitions",
    "INSERT INTO segments SELECT * FROM segments",
    "INSERT INTO segments SELECT id + 1, topic, partition_id, base_offset, end_offset, record_count, size_bytes, "
    "s3_bucket, s3_key, byte_offset, created_at, NULL, NULL, NULL FROM segments",
    "INSERT INTO segment_objects SELECT * FROM segment_objects",
    "INSERT INTO producer_sequences SELECT * FROM producer_sequences",
    "INSERT INTO consumer_offsets SELECT * FROM consumer_offsets",
    "INSERT INTO agents SELECT * FROM agents",
    "INSERT INTO partition_leases SELECT * FROM partition_leases",
    "INSERT INTO group_leases SELECT * FROM group_leases",
    'INSERT INTO tables SELECT id + 1, "database", name, location, 0, 0, 0, 0, status, 0, 0 FROM tables',
    "INSERT INTO table_metadata SELECT id + 1, table_id, schema_version, schema, storage_engine, engine_config, "
    "format, compression, partition_by, sort_by, properties, 0, 0, 0 FROM table_metadata",
    "INSERT INTO table_files SELECT id + 1, table_id, file_name, file_path, 0, file_type, partition_path, 0, NULL, "
    "is_compressed, schema_version, NULL, operation, operation_id, 0, 0 FROM table_files",
    "INSERT INTO table_stats SELECT id + 1, table_id, partition_path, 0, 0, 0, 0, 0, 0 FROM table_stats",
    "INSERT INTO table_snapshots SELECT id + 1, table_id, NULL, 0, NULL, summary, NULL, \"trigger\", 'requested', "
    "tag, NULL, 0, 0 FROM table_snapshots",
    "INSERT INTO ledger SELECT * FROM ledger",
    "INSERT INTO daemon_lease SELECT * FROM daemon_lease",
    "INSERT INTO daemons SELECT * FROM daemons",
    "INSERT INTO source_identity SELECT * FROM source_identity",
    "INSERT INTO upload_intents SELECT * FROM upload_intents",
    "INSERT INTO files_awaiting_deletion SELECT id + 1, table_id, file_path, 0, reason, file, 0 "
    "FROM files_awaiting_deletion",
    "INSERT INTO compactions SELECT id + 1, table_id, table_name, partition_path, status, \"trigger\", rule, strategy, "
    "explanation, NULL, 0, 0, 0, 0, 0, operation_id, owner, cancel_requested, NULL, 0, 0, 0, 0 FROM compactions",
    "INSERT INTO table_delete_files SELECT id + 1, table_id, file_path, 0, file_type, content, 0, partition_path, 0, "
    "NULL, NULL, content_offset, 0, NULL, 0, 0 FROM table_delete_files",
    "INSERT INTO catalog_requests SELECT * FROM catalog_requests",
    "INSERT INTO lake_locations SELECT * FROM lake_locations",
    "INSERT INTO table_inserts SELECT * FROM table_inserts",
    # references
    "INSERT INTO partitions VALUES ('nowhere', 0, 0, 0, 0)",
    "UPDATE segments SET partition_id = 9",
    "UPDATE producer_sequences SET partition_id = 9",
    "UPDATE consumer_offsets SET group_id = 'unknown'",
    "UPDATE consumer_offsets SET partition_id = 9",
    "UPDATE partition_leases SET leader_agent_id = 'unknown'",
    "UPDATE partition_leases SET partition_id = 9",
    "UPDATE group_leases SET group_id = 'unknown'",
    "UPDATE group_leases SET member_id = 'unknown'",
    "UPDATE group_leases SET partition_id = 9",
    "UPDATE table_metadata SET table_id = 99",
    "UPDATE table_files SET table_id = 99",
    "UPDATE table_files SET schema_version = 2",
    "UPDATE table_stats SET table_id = 99",
    "UPDATE table_snapshots SET table_id = 99",
    "UPDATE table_inserts SET table_id = 99",
    "UPDATE iceberg_commits SET table_id = 99",
    "UPDATE table_delete_files SET table_id = 99",
]  # fmt: skip


def test_a_violated_constraint_is_refused(raw: Raw, subtests: pytest.Subtests) -> None:
    for statement in VIOLATIONS:
        with subtests.test(statement), pytest.raises((sqlite3.IntegrityError, psycopg.Error)) as caught:
            raw.execute(statement)
        if isinstance(caught.value, psycopg.Error):  # the rule, not the spelling of the statement
            assert caught.value.sqlstate is not None
            assert caught.value.sqlstate[:2] in ("22", "23"), (statement, caught.value)


def test_every_constraint_is_violated_by_a_test() -> None:
    """Counted, so that a new constraint needs a line above."""
    rules = [
        constraint
        for table in metadata.tables.values()
        for constraint in table.constraints
        if type(constraint).__name__ == "CheckConstraint"
    ]
    checks = VIOLATIONS[: VIOLATIONS.index("UPDATE segments SET size_bytes = 'many'")]
    assert len(checks) >= len(rules)


OF_ENGINES = {"iceberg_commits", "table_delete_files"}
OF_A_PARTITION = {"segments", "consumer_offsets", "partition_leases", "producer_sequences", "group_leases"}


@pytest.mark.parametrize(
    ("statement", "gone"),
    [
        ("DELETE FROM topics", {"partitions", *OF_A_PARTITION}),
        ("DELETE FROM partitions WHERE partition_id = 0", OF_A_PARTITION),
        ("DELETE FROM consumer_groups", {"consumer_offsets", "group_leases"}),
        (
            "DELETE FROM tables",
            {"table_metadata", "table_files", "table_stats", "table_snapshots", "table_inserts", *OF_ENGINES},
        ),
        ("DELETE FROM table_metadata", {"table_files"}),
        ("DELETE FROM agents", set[str]()),
    ],
)
def test_deletions_cascade(raw: Raw, statement: str, gone: set[str]) -> None:
    target = statement.split()[2]
    before = {name: raw.count(name) for name in metadata.tables}
    assert raw.execute(statement) == 1
    for name, count in before.items():
        if name in gone:
            assert raw.count(name) == 0, name
        elif name != target:
            assert raw.count(name) == count, name


def test_a_lease_outlives_its_agent_without_a_leader(raw: Raw) -> None:
    raw.execute("DELETE FROM agents")
    assert raw.count("partition_leases WHERE leader_agent_id IS NULL AND epoch = 3") == 1


def test_a_tag_is_free_again_when_its_snapshot_is_expired(raw: Raw) -> None:
    raw.execute("UPDATE table_snapshots SET status = 'expired'")
    raw.execute(
        "INSERT INTO table_snapshots SELECT id + 1, table_id, NULL, 0, NULL, summary, NULL, \"trigger\", 'requested', "
        "tag, NULL, 0, 0 FROM table_snapshots"
    )
    assert raw.count("table_snapshots WHERE tag = 'v1'") == 2
