"""Registries to measure on, filled on the server's side because filling is not measured."""

from __future__ import annotations

import asyncio

import psycopg

from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.migrate import migrate

SEGMENTS_EACH = 100  # of a partition
RECORDS = 10  # of a segment

SERVER = {
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",  # no checkpoint while measuring
    "autovacuum": "off",  # nor a vacuum: tables are analysed when they are filled
}


def age(server: EmbeddedPostgres, wal_mb: int) -> None:
    """Gives a new server recycled WAL files, as a server that has run for a while has them.

    A new one makes each file of 16 MB when it is needed, while all commits wait. ``min_wal_size`` must be as
    much, or a checkpoint removes them.
    """
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        for _ in range(wal_mb // 16):
            connection.execute("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
        connection.execute("CHECKPOINT")


async def new_registry(server: EmbeddedPostgres, name: str) -> tuple[str, MetadataStore]:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    url = server.url(name)
    await asyncio.to_thread(migrate, url)
    return url, await open_store(url)


def fill_topics(url: str, topics: int, partitions: int, *, segments_each: int = 0) -> None:
    """Topics ``t0..``, each with so many partitions, each with so many segments of 10 records, without gaps."""
    last = segments_each * RECORDS
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")  # no foreign keys to check
        connection.execute(
            f"INSERT INTO topics SELECT 't' || n, {partitions}, NULL, '{{}}', 0, 0 "
            f"FROM generate_series(0, {topics - 1}) n"
        )
        connection.execute(
            f"INSERT INTO partitions SELECT 't' || n, p, {last}, 0, 0 "
            f"FROM generate_series(0, {topics - 1}) n, generate_series(0, {partitions - 1}) p"
        )
        connection.execute(
            "INSERT INTO segments (topic, partition_id, base_offset, end_offset, record_count, size_bytes, "
            "s3_bucket, s3_key, byte_offset, created_at) "
            f"SELECT topic, partition_id, s * {RECORDS}, s * {RECORDS} + {RECORDS - 1}, {RECORDS}, 65536, "
            "'lake', format('%s/%s', topic, lpad(partition_id::text, 6, '0')), s, 0 "
            f"FROM partitions, generate_series(0, {segments_each - 1}) s ORDER BY topic, partition_id, s"
        )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE, PARALLEL 0)")


def rows_of(url: str, table: str) -> int:
    with psycopg.connect(url) as connection:
        answer = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert answer is not None
        return int(answer[0])
