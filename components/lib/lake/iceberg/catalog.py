"""The Iceberg catalog: tables in the registry's own database unless the settings name another.

`iceberg_tables` and `iceberg_namespace_properties` are part of the registry's schema: `astha registry migrate` creates
them as PyIceberg would, so that a daemon needs no right to create tables, and `astha registry copy` copies them. Every
engine that speaks Iceberg's JDBC catalog can use them, under the catalog name `astha`.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from uuid import UUID

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables as CatalogRow
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertCreate,
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from sqlalchemy import URL, Engine, create_engine, event, update
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from astha.subscribers.context import LakeSettings, S3Settings
from components.lib.lake.iceberg.errors import with_mapped_errors
from components.lib.lake.iceberg.file_io import mode_properties
from registry.engines import parse_url, sqlite_path
from registry.sqlite_connections import follow_file

NAME = "astha"
"""Of the catalog: other engines must use the same one to see the same rows of `iceberg_tables`."""

_NO_SNAPSHOTS = '"snapshots":[]'

_MOST_TABLES = 256
"""Whose snapshots are kept as text: some hundred bytes a snapshot."""

_WAIT_S = 30
"""SQLite: how long to wait for another writer of the registry's file."""


def open_catalog(registry_url: str, lake: LakeSettings) -> Catalog:
    """Close it after use. CatalogUnavailable if it can't be reached."""
    storage = {**file_io_properties(lake.s3), **mode_properties(lake.modes)}
    properties = lake.catalog_properties()
    if properties:
        name = properties.pop("name", NAME)
        return with_mapped_errors(lambda: load_catalog(name, **{**storage, **properties}))
    return with_mapped_errors(lambda: RegistryCatalog(NAME, parse_url(registry_url), **storage))


def file_io_properties(s3: S3Settings) -> dict[str, str]:
    """PyIceberg's names for what one needs to reach S3. Holds secrets."""
    given = {
        "s3.endpoint": s3.endpoint,
        "s3.region": s3.region,
        "s3.access-key-id": None if s3.access_key is None else s3.access_key.get_secret_value(),
        "s3.secret-access-key": None if s3.secret_key is None else s3.secret_key.get_secret_value(),
        "s3.session-token": None if s3.session_token is None else s3.session_token.get_secret_value(),
        "s3.force-virtual-addressing": "true" if s3.virtual_hosted else "false",
        # Seconds. A storage that is silent must not hold a thread for ever.
        "s3.connect-timeout": "5",
        "s3.request-timeout": "30",
    }
    return {name: value for name, value in given.items() if value is not None}


class RegistryCatalog(SqlCatalog):
    """A SQL catalog over the registry's database. Its URL is no property: what holds a password is not passed on."""

    def __init__(self, name: str, url: URL, **properties: str) -> None:
        MetastoreCatalog.__init__(self, name, **{**properties, "init_catalog_tables": "false"})
        self.engine = _engine(url)
        self._closed = False
        self._close_late_connections()
        self._snapshots: OrderedDict[UUID, dict[int, str]] = OrderedDict()  # of tables, as they are written
        self._init_catalog()

    def close(self) -> None:
        self._closed = True
        self.engine.dispose()

    def _close_late_connections(self) -> None:
        """A call that was left behind in a thread may still use the catalog after `close`: `dispose` does not reach the
        connection that it holds, and nothing would close the one that it opens.
        """

        @event.listens_for(self.engine, "checkin")
        def close(connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
            if self._closed and connection is not None:
                entry.invalidate()

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """On top of the metadata that `table` has, which the swap of the pointer checks to be the current one.

        PyIceberg's own reads the metadata file again and copies all of it twice, at a cost that grows with
        the number of snapshots. A table that is not new enough is CommitFailedException here and there.
        """
        if any(isinstance(requirement, AssertCreate) for requirement in requirements):
            return super().commit_table(table, requirements, updates)
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = _applied(table, updates)
        if metadata is table.metadata:
            return CommitTableResponse(metadata=metadata, metadata_location=table.metadata_location)
        version = self._parse_metadata_version(table.metadata_location) + 1
        location = load_location_provider(metadata.location, metadata.properties).new_table_metadata_file_location(
            version
        )
        with table.io.new_output(location).create() as output:
            output.write(self._text_of(metadata).encode())
        self._swap(table, location)
        return CommitTableResponse.model_construct(metadata=metadata, metadata_location=location)

    def _text_of(self, metadata: TableMetadata) -> str:
        """As PyIceberg writes it; but a snapshot, which never changes, is made into text once, not by every commit."""
        known = self._snapshots.get(metadata.table_uuid, {})
        texts = {
            snapshot.snapshot_id: known.get(snapshot.snapshot_id) or snapshot.model_dump_json(exclude_none=True)
            for snapshot in metadata.snapshots
        }
        self._snapshots[metadata.table_uuid] = texts
        self._snapshots.move_to_end(metadata.table_uuid)
        if len(self._snapshots) > _MOST_TABLES:
            self._snapshots.popitem(last=False)
        rest = metadata.model_copy(update={"snapshots": []}).model_dump_json(exclude_none=True)
        before, _, after = rest.partition(_NO_SNAPSHOTS)  # a quote inside a value is written otherwise
        return f'{before}"snapshots":[{",".join(texts.values())}]{after}'

    def _swap(self, table: Table, location: str) -> None:
        *namespace, name = table.name()
        statement = (
            update(CatalogRow)
            .where(
                CatalogRow.catalog_name == self.name,
                CatalogRow.table_namespace == Catalog.namespace_to_string(tuple(namespace)),
                CatalogRow.table_name == name,
                CatalogRow.metadata_location == table.metadata_location,
            )
            .values(metadata_location=location, previous_metadata_location=table.metadata_location)
        )
        with Session(self.engine) as session:
            if session.execute(statement).rowcount < 1:  # type: ignore[attr-defined]  # an UPDATE has one
                table.io.delete(location)
                raise CommitFailedException(f"table {'.'.join(table.name())} has been committed to by another process")
            session.commit()


def _applied(table: Table, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    """PyIceberg's `update_table_metadata` without its deep copy: nobody changes metadata in place."""
    context = _TableMetadataUpdateContext()
    metadata = table.metadata
    for change in updates:
        metadata = _apply_table_update(change, metadata, context)
    if not context.has_changes():
        return table.metadata
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return _update_table_metadata_log(metadata, table.metadata_location, table.metadata.last_updated_ms)


def _engine(url: URL) -> Engine:
    if url.drivername == "sqlite":
        engine = create_engine(url, connect_args={"timeout": _WAIT_S})

        @event.listens_for(engine, "connect")
        def prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
            assert isinstance(connection, sqlite3.Connection)  # noqa: S101  (the driver of this URL)
            connection.execute("PRAGMA synchronous = FULL")

        follow_file(engine, sqlite_path(url))
        return engine
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        connect_args={"application_name": "astha-iceberg", "connect_timeout": 10},
    )
