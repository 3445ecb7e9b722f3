"""The Iceberg catalog: tables in the registry's own database unless the settings name another.

`iceberg_tables` and `iceberg_namespace_properties` are part of the registry's schema: `astha registry migrate` creates
them as PyIceberg would, so that a daemon needs no right to create tables, and `astha registry copy` copies them. Every
engine that supports Iceberg's JDBC catalog can use them, under the catalog name `astha`.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from typing import Protocol, runtime_checkable
from uuid import UUID

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from astha.subscribers.context import LakeSettings, S3Settings
from components.lib.lake.iceberg.errors import with_mapped_errors
from components.lib.lake.iceberg.file_io import mode_properties
from components.lib.lake.iceberg.pyiceberg_internals import EngineSqlCatalog, updated_metadata
from registry.engines import parse_url, server_driver, sqlite_path
from registry.sqlite_connections import follow_file

NAME = "astha"
"""The catalog's name. Other engines must use it to see the same rows of `iceberg_tables`."""

_NO_SNAPSHOTS = '"snapshots":[]'

_MAX_TABLES = 256
"""Tables whose snapshots are cached as JSON: a few hundred bytes per snapshot."""

_LOCK_TIMEOUT_S = 30
"""How long to wait for another writer of a SQLite registry."""


def open_catalog(registry_url: str, lake: LakeSettings) -> Catalog:
    """Opens the catalog; the caller closes it. Raises `CatalogUnavailable`."""
    storage = {**file_io_properties(lake.s3), **mode_properties(lake.modes)}
    properties = lake.catalog_properties()
    if properties:
        name = properties.pop("name", NAME)
        return with_mapped_errors(lambda: load_catalog(name, **{**storage, **properties}))
    url = parse_url(registry_url)
    if url.drivername == "dynamodb":
        from components.lib.lake.iceberg.dynamodb_catalog import DynamoCatalog

        return with_mapped_errors(lambda: DynamoCatalog(NAME, registry_url, **storage))
    return with_mapped_errors(lambda: RegistryCatalog(NAME, url, **storage))


def file_io_properties(s3: S3Settings) -> dict[str, str]:
    """Returns the S3 settings as PyIceberg's properties, secrets included."""
    given = {
        "s3.endpoint": s3.endpoint,
        "s3.region": s3.region,
        "s3.access-key-id": None if s3.access_key is None else s3.access_key.get_secret_value(),
        "s3.secret-access-key": None if s3.secret_key is None else s3.secret_key.get_secret_value(),
        "s3.session-token": None if s3.session_token is None else s3.session_token.get_secret_value(),
        "s3.force-virtual-addressing": "true" if s3.virtual_hosted else "false",
        # Seconds. A storage that does not respond must not block a thread forever.
        "s3.connect-timeout": "5",
        "s3.request-timeout": "30",
    }
    return {name: value for name, value in given.items() if value is not None}


@runtime_checkable
class InRegistry(Protocol):
    """A catalog whose pointers are rows of the registry."""

    def pointers(self) -> list[tuple[tuple[str, ...], str]]:
        """Returns the identifier and the metadata file of every table."""
        ...


class PointerSwaps(Protocol):
    def next_metadata_location(self, table: Table, metadata: TableMetadata) -> str: ...

    def swap_metadata_location(self, table: Table, location: str) -> bool:
        """Returns False, and changes nothing, if the catalog's pointer is no longer the one that `table` has."""
        ...


class MetadataCommits:
    """Writes metadata files, without reading or copying what `table` has already."""

    def __init__(self) -> None:
        self._snapshots: OrderedDict[UUID, dict[str, str]] = OrderedDict()  # as JSON, by table and manifest list

    def commit(
        self,
        catalog: PointerSwaps,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = updated_metadata(table, updates)
        if metadata is table.metadata:
            return CommitTableResponse(metadata=metadata, metadata_location=table.metadata_location)
        location = catalog.next_metadata_location(table, metadata)
        with table.io.new_output(location).create() as output:
            output.write(self._to_json(metadata).encode())
        if not catalog.swap_metadata_location(table, location):
            table.io.delete(location)
            raise CommitFailedException(f"table {'.'.join(table.name())} has been committed to by another process")
        return CommitTableResponse.model_construct(metadata=metadata, metadata_location=location)

    def _to_json(self, metadata: TableMetadata) -> str:
        """Returns the JSON that PyIceberg writes, but serializes each snapshot, which never changes, only once.

        An attempt after a conflict may use the same snapshot id again, but never the same manifest list.
        """
        known = self._snapshots.get(metadata.table_uuid, {})
        texts = {
            snapshot.manifest_list: known.get(snapshot.manifest_list) or snapshot.model_dump_json(exclude_none=True)
            for snapshot in metadata.snapshots
        }
        self._snapshots[metadata.table_uuid] = texts
        self._snapshots.move_to_end(metadata.table_uuid)
        if len(self._snapshots) > _MAX_TABLES:
            self._snapshots.popitem(last=False)
        rest = metadata.model_copy(update={"snapshots": []}).model_dump_json(exclude_none=True)
        before, _, after = rest.partition(_NO_SNAPSHOTS)  # inside a value the quotes would be escaped
        return f'{before}"snapshots":[{",".join(texts.values())}]{after}'


class RegistryCatalog(EngineSqlCatalog):
    """A SQL catalog over the registry's database. Its URL is not a property, because it may contain a password."""

    def __init__(self, name: str, url: URL, **properties: str) -> None:
        engine = _engine(url)
        self._closed = False
        self._close_late_connections(engine)
        self._metadata = MetadataCommits()
        super().__init__(name, engine, **properties)

    def close(self) -> None:
        self._closed = True
        self.engine.dispose()

    def _close_late_connections(self, engine: Engine) -> None:
        """A call that was left behind in a thread may still use the catalog after `close`: `dispose` does not reach the
        connection that it holds, and nothing would close the one that it opens.
        """

        @event.listens_for(engine, "checkin")
        def close(connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
            if self._closed and connection is not None:
                entry.invalidate()

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Applies the updates to the metadata of `table`; the swap of the pointer checks that it is still current.

        PyIceberg's own method reads the metadata file again and copies it twice, at a cost that grows with the number
        of snapshots. Raises `CommitFailedException`, like PyIceberg's, if `table` is out of date.
        """
        if any(isinstance(requirement, AssertCreate) for requirement in requirements):
            return super().commit_table(table, requirements, updates)
        return self._metadata.commit(self, table, requirements, updates)


def _engine(url: URL) -> Engine:
    if url.drivername == "sqlite":
        engine = create_engine(url, connect_args={"timeout": _LOCK_TIMEOUT_S})

        @event.listens_for(engine, "connect")
        def prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
            assert isinstance(connection, sqlite3.Connection)  # noqa: S101  (the driver of this URL)
            connection.execute("PRAGMA synchronous = FULL")

        follow_file(engine, sqlite_path(url))
        return engine
    return create_engine(
        server_driver(url),
        pool_pre_ping=True,
        connect_args={"application_name": "astha-iceberg", "connect_timeout": 10},
    )
