"""The registry's schema on CockroachDB: created as it is now, and placed in regions.

DDL there is not transactional: a statement's change happens after its commit, and an interrupted migration leaves some
tables. So every statement can be repeated, and the version is written last: a migration that was interrupted is run
again. Tables are dropped in one statement, which is all or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from alembic.ddl.postgresql import PostgresqlImpl
from sqlalchemy import BigInteger, Boolean, Column, Connection, MetaData, Table, Text
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from registry.cockroachdb import NAME
from registry.cockroachdb.dialect import server_version
from registry.errors import Invalid, Unavailable
from registry.schema import VERSION_TABLE, metadata

MINIMUM = (22, 2)

FIRST_REVISION = "0010"
"""The schema with which CockroachDB's registries begin."""

_own = MetaData()

commit_attempts = Table(
    "commit_attempts",
    _own,
    Column("id", Text, primary_key=True),
    Column("committed", Boolean, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
"""A row per transaction, written with it: see `registry.stores.cockroachdb.transactions`."""

registry_locks = Table("registry_locks", _own, Column("name", Text, primary_key=True), Column("used_at", BigInteger))
"""A row per lock, in place of PostgreSQL's advisory locks and LOCK TABLE."""

OWN_TABLES = tuple(_own.sorted_tables)
"""Tables that only CockroachDB's registries have. They are not part of the registry's contents."""

LOAD, LOCATIONS = "load", "locations"

READ_MOSTLY = (
    "topics", "consumer_groups", "table_metadata", "iceberg_namespace_properties", "lake_locations", "source_identity",
    "registry_locks",
)  # fmt: skip
"""Tables that every region reads and hardly any commit changes."""


class CockroachMigrations(PostgresqlImpl):
    """Makes the dialect known to Alembic."""

    __dialect__ = NAME
    transactional_ddl = False


class Placement(msgspec.Struct, frozen=True):
    """Regions of the cluster; the first one is the database's primary region."""

    regions: tuple[str, ...]

    def statements(self, database: str) -> Iterator[str]:
        """Tables that are mostly read are `GLOBAL`; rows of the others are in the region of their writer."""
        if not self.regions:
            raise Invalid("regions", self.regions, "must name at least the primary region")
        name = _quoted(database)
        yield f"ALTER DATABASE {name} SET PRIMARY REGION {_quoted(self.regions[0])}"
        for region in self.regions[1:]:
            yield f"ALTER DATABASE {name} ADD REGION IF NOT EXISTS {_quoted(region)}"
        for table in table_names():
            locality = "GLOBAL" if table in READ_MOSTLY else "REGIONAL BY ROW"
            yield f"ALTER TABLE {_quoted(table)} SET LOCALITY {locality}"


def require_server(connection: Connection) -> None:
    """Raises Unavailable unless the server is a CockroachDB that the registry can use."""
    text = str(connection.exec_driver_sql("SELECT version()").scalar_one())
    found = server_version(text)
    if found is None or found < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        raise Unavailable(f"CockroachDB {wanted} or newer is needed, the server says: {text}")


def table_names() -> list[str]:
    """Returns the tables, parents before children."""
    return [table.name for table in (*metadata.sorted_tables, *OWN_TABLES)]


def create_tables(connection: Connection) -> None:
    """Creates what is missing, in one transaction: many times faster than table by table. Can be repeated."""
    connection.exec_driver_sql("BEGIN")
    try:
        for statement in creation((*metadata.sorted_tables, *OWN_TABLES)):
            connection.execute(statement)
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")
    for row in lock_rows():
        connection.exec_driver_sql(row)
    # Rows of transactions whose writer died: the others are deleted by their writers.
    connection.exec_driver_sql("ALTER TABLE commit_attempts SET (ttl_expire_after = '1 day')")


def lock_rows() -> list[str]:
    return [f"INSERT INTO registry_locks (name) VALUES ('{name}') ON CONFLICT DO NOTHING" for name in (LOAD, LOCATIONS)]


def creation(tables: Sequence[Table]) -> Iterator[DDLElement]:
    for table in tables:
        yield CreateTable(table, if_not_exists=True)
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield CreateIndex(index, if_not_exists=True)


def drop_tables(connection: Connection) -> None:
    names = ", ".join(_quoted(name) for name in (*table_names(), VERSION_TABLE))
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {names} CASCADE")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
