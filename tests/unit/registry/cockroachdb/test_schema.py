from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from registry.cockroachdb import schema
from registry.cockroachdb.dialect import CockroachDialect, driver, grows_in_time, server_version
from registry.engines import parse_url
from registry.errors import Invalid
from registry.migrate import migrate
from registry.schema import metadata


def _ddl(table: str) -> str:
    return ";\n".join(
        str(statement.compile(dialect=CockroachDialect())) for statement in schema.creation([metadata.tables[table]])
    )


def test_keys_and_indexes_that_grow_at_one_end_are_sharded() -> None:
    text = _ddl("segments")
    assert "id INT8 NOT NULL DEFAULT unique_rowid()" in text
    assert "PRIMARY KEY (id) USING HASH" in text
    assert "ON segments (created_at) USING HASH" in text
    assert "UNIQUE (topic, partition_id, base_offset)" in text
    assert "ON segments (s3_bucket, s3_key)" in text
    assert "ON segments (s3_bucket, s3_key) USING HASH" not in text
    assert "PRIMARY KEY (topic, partition_id)" in _ddl("partitions")
    assert "PRIMARY KEY (topic, partition_id) USING HASH" not in _ddl("partitions")


def test_no_index_in_time_is_left_out() -> None:
    times = {index.name for table in metadata.sorted_tables for index in table.indexes if grows_in_time(index)}
    assert times == {
        "ix_agents_last_heartbeat",
        "ix_catalog_requests_created_at",
        "ix_compactions_decided_at_id",
        "ix_compactions_started_at",
        "ix_files_awaiting_deletion_removed_at",
        "ix_producer_sequences_updated_at",
        "ix_segments_created_at",
        "ix_upload_intents_created_at",
    }


def test_no_row_is_skipped_because_it_is_locked() -> None:
    query = select(metadata.tables["compactions"].c.id).with_for_update(skip_locked=True)
    text = str(query.compile(dialect=CockroachDialect()))
    assert text.endswith(" FOR UPDATE")


def test_documents_are_text_and_checked() -> None:
    text = _ddl("topics")
    assert "config VARCHAR NOT NULL" in text
    assert "CONSTRAINT ck_topics_config_json CHECK (config IS NULL OR config::JSONB IS NOT NULL)" in text
    assert "partition_count INT4 NOT NULL" in text


def test_every_statement_can_be_repeated() -> None:
    for statement in schema.creation((*metadata.sorted_tables, *schema.OWN_TABLES)):
        assert " IF NOT EXISTS " in str(statement.compile(dialect=CockroachDialect()))
    assert all("ON CONFLICT DO NOTHING" in statement for statement in schema.lock_rows())


def test_tables_are_placed_in_regions() -> None:
    statements = list(schema.Placement(("eu-west1", "us-east1")).statements("registry"))
    assert statements[:2] == [
        'ALTER DATABASE "registry" SET PRIMARY REGION "eu-west1"',
        'ALTER DATABASE "registry" ADD REGION IF NOT EXISTS "us-east1"',
    ]
    assert 'ALTER TABLE "topics" SET LOCALITY GLOBAL' in statements
    assert 'ALTER TABLE "registry_locks" SET LOCALITY GLOBAL' in statements
    assert 'ALTER TABLE "segments" SET LOCALITY REGIONAL BY ROW' in statements
    assert len(statements) == 2 + len(schema.table_names())
    assert set(schema.READ_MOSTLY) < set(schema.table_names())
    with pytest.raises(Invalid, match="primary region"):
        list(schema.Placement(()).statements("registry"))


def test_other_databases_have_no_regions(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="only CockroachDB has"):
        migrate(f"sqlite:///{tmp_path}/registry.db", placement=schema.Placement(("eu-west1",)))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27, go1.19.10)", (23, 1, 11)),
        ("CockroachDB OSS v22.2.0-alpha (aarch64)", (22, 2, 0)),
        ("PostgreSQL 17.2 on x86_64", None),
    ],
)
def test_the_server_is_recognized(text: str, version: tuple[int, ...] | None) -> None:
    assert server_version(text) == version


def test_sqlalchemy_finds_the_dialect() -> None:
    dialect = driver(parse_url("cockroachdb://user@host:26257/db?sslmode=disable")).get_dialect()()
    assert (dialect.name, dialect.driver) == ("cockroachdb", "psycopg")
