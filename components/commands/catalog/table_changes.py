"""Creates, registers and changes tables: requests are prepared on the current metadata, and committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from components.commands.catalog.commit_preparation import CommitPreparation, TableChange
from components.commands.catalog.commits import Commits, Prepare
from components.commands.catalog.errors import AlreadyExists
from components.commands.catalog.idempotency import once
from components.commands.catalog.locations import Locations
from components.commands.catalog.names import TableIdentity
from components.commands.catalog.namespaces import Namespaces
from components.commands.catalog.prepared_commit import PreparedCommit
from components.commands.catalog.table_locks import TableLocks
from components.commands.catalog.tables import LoadedTable, Tables
from components.lib.lake.engine_commits.new_table import CreateRequest
from registry.contract import MetadataStore
from registry.models import CatalogRequest


class Origin(NamedTuple):
    """The client, as it calls itself, and the record of its request if that has an idempotency key."""

    engine: str | None
    request: CatalogRequest | None


class TableChanges:
    def __init__(
        self,
        store: MetadataStore,
        tables: Tables,
        namespaces: Namespaces,
        locations: Locations,
        preparation: CommitPreparation,
        commits: Commits,
        locks: TableLocks,
    ) -> None:
        self._store = store
        self._tables = tables
        self._namespaces = namespaces
        self._locations = locations
        self._preparation = preparation
        self._commits = commits
        self._locks = locks

    async def stage(self, table: TableIdentity, body: CreateRequest) -> LoadedTable:
        """Returns the metadata of a table that a later commit may create. Nothing is stored."""
        await self._require_new(table)
        location = await self._locations.choose(table, body.location)
        return LoadedTable(None, body.metadata(location, now_ms=self._preparation.now_ms()).encode())

    async def create(self, table: TableIdentity, body: CreateRequest, origin: Origin) -> LoadedTable:
        async def prepare() -> Sequence[PreparedCommit]:
            await self._require_new(table)
            location = await self._locations.choose(table, body.location)
            return [await self._preparation.create(table, body, location, origin.engine)]

        return await self._committed_one(table, prepare, origin)

    async def register(self, table: TableIdentity, metadata_location: str, origin: Origin) -> LoadedTable:
        """Makes a table of metadata that exists in storage, with all its files."""

        async def prepare() -> Sequence[PreparedCommit]:
            await self._require_new(table)
            return [await self._preparation.register(table, metadata_location, origin.engine)]

        return await self._committed_one(table, prepare, origin)

    async def commit(self, changes: Sequence[TableChange], origin: Origin) -> list[LoadedTable]:
        """Commits the changes of all tables, or none. A repeated commit succeeds without effect."""

        async def prepare() -> Sequence[PreparedCommit]:
            return await self._preparation.changes(changes, origin.engine)

        return await self._committed([change.table for change in changes], prepare, origin)

    async def _committed_one(self, table: TableIdentity, prepare: Prepare, origin: Origin) -> LoadedTable:
        (done,) = await self._committed([table], prepare, origin)
        return done

    async def _committed(self, tables: Sequence[TableIdentity], prepare: Prepare, origin: Origin) -> list[LoadedTable]:
        async def execute() -> list[LoadedTable]:
            async with self._locks.hold(tables):
                return await self._commits.commit(prepare, origin.request)

        async def repeated() -> list[LoadedTable]:
            return [await self._tables.load(table) for table in tables]

        return await once(self._store, origin.request, execute, repeated)

    async def _require_new(self, table: TableIdentity) -> None:
        await self._namespaces.require(table.namespace)
        if await self._tables.exists(table):
            raise AlreadyExists(f"Table already exists: {table}")
