"""The privileges that a PostgreSQL role needs, and the SQL that grants them.

A daemon reads everything, and writes its own tables and the areas of the registry that its components write.
A reader only reads. Neither needs to own or create anything: migrations do that, as the owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from psycopg import sql

from registry import models
from registry.areas import Area
from registry.models import PUBLISHED, UNPUBLISHED, Row
from registry.schema import VERSION_TABLE

DAEMON_TABLES: tuple[type[Row], ...] = (
    models.LedgerEntry, models.DaemonLease, models.RunningDaemon, models.SourceIdentity, models.LakeLocation,
)  # fmt: skip
"""Tables that every daemon writes, whatever its components."""

AREAS: Mapping[Area, tuple[type[Row], ...]] = {
    Area.STREAMS: (
        models.Topic, models.Partition, models.Segment, models.ConsumerGroup, models.ConsumerOffset, models.Agent,
        models.PartitionLease, models.SegmentObject, models.ProducerSequence, models.GroupLease, models.UploadIntent,
    ),
    Area.LAKE: (
        models.LakeTable, models.TableMetadata, models.TableFile, models.TableStats, models.TableSnapshot,
        models.Compaction, models.FileAwaitingDeletion, models.UploadIntent,
        models.CatalogTable, models.CatalogNamespace, models.CatalogRequest, models.IcebergCommit,
        models.TableDeleteFile, models.TableInsert,
    ),
}  # fmt: skip

_WRITES = ("INSERT", "UPDATE", "DELETE")


def readable() -> list[str]:
    """Returns every table of the registry, including that of the schema version."""
    return [*(kind.table for kind in (*PUBLISHED, *UNPUBLISHED)), VERSION_TABLE]


def writable(areas: Collection[Area]) -> list[str]:
    kinds = dict.fromkeys([*DAEMON_TABLES, *(kind for area in Area if area in areas for kind in AREAS[area])])
    return [kind.table for kind in kinds]


def needed(areas: Collection[Area]) -> list[tuple[str, str]]:
    """Returns (table, privilege) pairs that a daemon needs if its components write to these areas."""
    reads = [(table, "SELECT") for table in readable()]
    return [*reads, *((table, privilege) for table in writable(areas) for privilege in _WRITES)]


def daemon_grants(role: str, database: str, schema: str, areas: Collection[Area]) -> str:
    """Returns a psql script for the owner of the tables; only its first statement needs a superuser."""
    alter = sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(role))
    writes = _grant(sql.SQL("GRANT INSERT, UPDATE, DELETE ON\n    {}\n    TO {}"), schema, writable(areas), role)
    return _script([alter, *_reads(role, database, schema), writes])


def reader_grants(role: str, database: str, schema: str) -> str:
    """Returns a psql script for a role that only reads."""
    return _script(_reads(role, database, schema))


def _reads(role: str, database: str, schema: str) -> list[sql.Composed]:
    names = sql.Identifier(database), sql.Identifier(schema), sql.Identifier(role)
    return [
        sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(names[0], names[2]),
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(names[1], names[2]),
        _grant(sql.SQL("GRANT SELECT ON\n    {}\n    TO {}"), schema, readable(), role),
    ]


def _grant(statement: sql.SQL, schema: str, tables: Sequence[str], role: str) -> sql.Composed:
    named = sql.SQL(",\n    ").join(sql.Identifier(schema, table) for table in tables)
    return statement.format(named, sql.Identifier(role))


def _script(statements: Iterable[sql.Composed]) -> str:
    return "".join(f"{statement.as_string()};\n" for statement in statements)
