"""WAL that many readers read: each gets a slot of its own, copied from a base slot that never advances."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from benchmarks.pipeline.child import TABLES
from registry.embedded_postgres import EmbeddedPostgres
from registry.migrate import migrate

INSERT = """
    INSERT INTO segments (topic, partition_id, base_offset, end_offset, record_count, size_bytes, s3_bucket, s3_key,
                          byte_offset, created_at)
    SELECT 't', 0, n * 10, n * 10 + 9, 10, 4096, 'bucket', 'objects/' || n, 0, 1700000000000
    FROM generate_series({first}::bigint, {last}::bigint) n
"""
LANES = tuple(f"lane{number}" for number in range(4))
_TEMPLATE = "registry_of_one_partition"


def prepare(server: EmbeddedPostgres) -> None:
    """Call once per server, before any `Wal`."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {_TEMPLATE}")
    migrate(server.url(_TEMPLATE))
    with psycopg.connect(server.url(_TEMPLATE)) as admin:
        admin.execute("INSERT INTO topics VALUES ('t', 1, NULL, '{}', 1, 1)")
        admin.execute("INSERT INTO partitions VALUES ('t', 0, 0, 1, 1)")


class Wal:
    """A database of its own, what is written to it, and slots that begin before that."""

    def __init__(self, server: EmbeddedPostgres, name: str) -> None:
        self.server, self.name = server, name
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        self.admin = psycopg.connect(server.url(name), autocommit=True)
        self.written = 0
        self._base, self._slot = f"base_{name}", f"measured_{name}"
        self.admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._base])

    def url(self, unix: bool = False) -> str:
        return self.server.url(self.name, unix=unix)

    def close(self) -> None:
        self.admin.close()

    def write(self, rows: int, transaction: int) -> None:
        """Writes in a loop on the server's side, because writing is not measured."""
        insert = INSERT.format(first="begun", last=f"begun + {transaction - 1}")
        self.admin.execute("SET synchronous_commit = off")
        self.admin.execute(
            f"""
            DO $$
            DECLARE begun bigint;
            BEGIN
                FOR begun IN {self.written} .. {self.written + rows - 1} BY {transaction} LOOP
                    {insert};
                    COMMIT;
                END LOOP;
            END $$
            """
        )
        self.admin.execute("RESET synchronous_commit")
        self.written += rows
        self.admin.execute("CHECKPOINT")

    def forget(self) -> None:
        """Slots that are copied from now on start here."""
        self.admin.execute("SELECT pg_drop_replication_slot(%s)", [self._base])
        self.admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._base])

    @contextmanager
    def fresh_slot(self, components: Sequence[str] = LANES) -> Iterator[str]:
        """A copy of the base slot, and a ledger that makes these components' lanes go on from there."""
        self.admin.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [self._base, self._slot])
        self.admin.execute("DELETE FROM ledger")
        self.admin.execute(
            """
            INSERT INTO ledger ("group", component, position, tables, state, refresh_owed, updated_at)
            SELECT 'astha', component, (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, %s::json, 'live', false, 0
            FROM pg_replication_slots, unnest(%s::text[]) component WHERE slot_name = %s
            """,
            [json.dumps(sorted(TABLES)), list(components), self._slot],
        )
        self.admin.execute("DELETE FROM source_identity")
        self.admin.execute(
            """
            INSERT INTO source_identity (name, identity, recorded_at)
            SELECT %s, system_identifier || '/' || timeline_id, 0 FROM pg_control_system(), pg_control_checkpoint()
            """,
            [self._slot],
        )
        try:
            yield self._slot
        finally:
            for _ in range(600):
                try:
                    self.admin.execute("SELECT pg_drop_replication_slot(%s)", [self._slot])
                    break
                except psycopg.errors.ObjectInUse:
                    time.sleep(0.05)

    def end(self) -> str:
        """Returns the LSN up to which WAL is written."""
        (end,) = self.admin.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
        return str(end)

    def read_by_somebody(self, slot: str) -> bool:
        row = self.admin.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchone()
        return row is not None and bool(row[0])
