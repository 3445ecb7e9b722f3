"""Prepares commits: applies a request to the current metadata, and finds out what that changes in the registry.

Manifests are read in threads with a time limit; the rest takes little time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from astha.clock import LoopClock
from components.commands.catalog.catalog_commit import CommitTarget, catalog_commit
from components.commands.catalog.errors import AlreadyExists, NoSuchTable
from components.commands.catalog.guarded_io import GuardedFileIO
from components.commands.catalog.locations import Locations
from components.commands.catalog.metadata_files import MetadataFiles
from components.commands.catalog.names import TableIdentity
from components.commands.catalog.namespaces import Namespaces
from components.commands.catalog.prepared_commit import PreparedCommit
from components.commands.catalog.repetition import is_repetition
from components.commands.catalog.schema_versions import SchemaVersions
from components.lib.lake.engine_commits.commit_request import CommitRequest
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.engine_commits.manifest_lists import ManifestLists
from components.lib.lake.engine_commits.metadata_builder import settable
from components.lib.lake.engine_commits.metadata_file import MetadataFile, metadata_file, own_log
from components.lib.lake.engine_commits.new_table import CreateRequest
from components.lib.lake.engine_commits.snapshot_tags import require_kept_tags
from components.lib.lake.engine_commits.table_change import TableChange as TableDifference
from components.lib.lake.engine_commits.table_change import read_change
from components.lib.lake.iceberg.catalog import NAME
from components.lib.lake.iceberg.catalog_thread import call_with_timeout
from components.lib.lake.iceberg.registry_identity import registry_identity
from components.lib.lake.iceberg.stamp import stamped_table_id
from registry.contract import MetadataStore

_TIMEOUT_S = 120.0


class TableChange(NamedTuple):
    """What a client wants of one table."""

    table: TableIdentity
    request: CommitRequest


class _Current(NamedTuple):
    """A table as the catalog has it."""

    location: str
    metadata: IcebergMetadata


class CommitPreparation:
    def __init__(
        self,
        store: MetadataStore,
        files: MetadataFiles,
        locations: Locations,
        namespaces: Namespaces,
        io: GuardedFileIO,
        clock: LoopClock,
    ) -> None:
        self._store = store
        self._files = files
        self._locations = locations
        self._namespaces = namespaces
        self._io = io
        self._clock = clock
        self._lists = ManifestLists()
        self._versions = SchemaVersions(store)
        self._identity: str | None = None

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def create(
        self, table: TableIdentity, body: CreateRequest, location: str, engine: str | None
    ) -> PreparedCommit:
        return await self._prepare(table, None, body.metadata(location, now_ms=self.now_ms()), engine)

    async def register(self, table: TableIdentity, metadata_location: str, engine: str | None) -> PreparedCommit:
        """The table gets a metadata file of its own: the stamp has to be in it."""
        location = await self._locations.metadata_to_register(metadata_location)
        await self._files.require_reasonable(location)
        found = await self._files.parsed(location)
        chosen = await self._locations.choose(table, found.location)
        moved = msgspec.structs.replace(found, location=chosen)
        log = await asyncio.to_thread(own_log, moved)
        return await self._prepare(
            table, None, msgspec.structs.replace(moved, metadata_log=log), engine, previous=location
        )

    async def changes(self, changes: Sequence[TableChange], engine: str | None) -> list[PreparedCommit]:
        return await asyncio.gather(*(self._change(change, engine) for change in changes))

    async def _change(self, change: TableChange, engine: str | None) -> PreparedCommit:
        table, request = change
        base = await self._current(table)
        if base is None:
            return await self._create(table, request, engine)
        if is_repetition(request, base.metadata):
            return await self._unchanged(table, base)
        if request.creates:
            raise AlreadyExists(f"Requirement failed: table already exists: {table}")
        request.check(base.metadata)
        metadata = request.apply(base.metadata, base.location, now_ms=self.now_ms())
        if metadata is base.metadata:
            return await self._unchanged(table, base)
        require_kept_tags(base.metadata, metadata)
        if metadata.location != base.metadata.location:
            table_id = stamped_table_id(base.metadata.properties, await self._registry_identity())
            location = await self._locations.choose(table, metadata.location, table_id=table_id)
            metadata = msgspec.structs.replace(metadata, location=location)
        return await self._prepare(table, base, metadata, engine)

    async def _create(self, table: TableIdentity, request: CommitRequest, engine: str | None) -> PreparedCommit:
        """Creates the table that was staged, or that the client describes completely."""
        if not request.creates:
            raise NoSuchTable(str(table))
        new = TableIdentity.new(*table)
        await self._namespaces.require(new.namespace)
        metadata = request.apply(None, None, now_ms=self.now_ms())
        location = await self._locations.choose(new, metadata.location)
        return await self._prepare(new, None, msgspec.structs.replace(metadata, location=location), engine)

    async def _unchanged(self, table: TableIdentity, base: _Current) -> PreparedCommit:
        json = await self._files.read(base.location)
        return PreparedCommit(
            table=table, base_location=base.location, base=base.metadata, metadata=base.metadata, json=json
        )

    async def _prepare(
        self,
        table: TableIdentity,
        base: _Current | None,
        metadata: IcebergMetadata,
        engine: str | None,
        *,
        previous: str | None = None,
    ) -> PreparedCommit:
        """`metadata` is the new one, without stamp. A table of the catalog that the registry does not know becomes the
        registry's, with all its files.
        """
        identity = await self._registry_identity()
        table_id = None if base is None else stamped_table_id(base.metadata.properties, identity)
        before = None if base is None else base.metadata
        if table_id is None:
            metadata = _without_stamp(metadata)
            before = None if before is None else _without_stamp(before)
        io = self._io if base is None or table_id is None else self._io.extended(base.metadata.location)
        change = await call_with_timeout(lambda: read_change(io, before, metadata, self._lists), _TIMEOUT_S)
        await self._locations.require_own_files(metadata.location, _named_files(before, change), table_id)
        pointer = None if base is None else base.location
        await self._locations.require_own_directories(before, metadata, table_id, pointer)
        versions = await self._versions.after(change, before, table_id)
        target = CommitTarget(
            table=table,
            expected=None if base is None else base.location,
            table_id=await self._store.reserve_table_id() if table_id is None else table_id,
            engine=engine,
            moves=base is not None and base.metadata.location != metadata.location,
        )
        stamped = change.stamped(schema_version=versions.number, table_id=target.table_id, registry=identity)
        file = await asyncio.to_thread(self._metadata_file, stamped, previous or target.expected)
        return PreparedCommit(
            table=table,
            base_location=target.expected,
            base=before,
            metadata=stamped,
            json=file.json,
            commit=catalog_commit(target, change, versions, file.location),
            file=file,
        )

    def _metadata_file(self, metadata: IcebergMetadata, previous: str | None) -> MetadataFile:
        file = metadata_file(metadata, previous)
        self._locations.require_writable(file.location, metadata.location)
        return file

    async def _current(self, table: TableIdentity) -> _Current | None:
        row = await self._store.get_catalog_table(NAME, *table)
        if row is None or row.metadata_location is None:
            return None
        return _Current(row.metadata_location, await self._files.parsed(row.metadata_location))

    async def _registry_identity(self) -> str:
        if self._identity is None:
            self._identity = await registry_identity(self._store)
        return self._identity


def _named_files(before: IcebergMetadata | None, change: TableDifference) -> list[str]:
    """Returns the files that the table refers to after the commit, and not before, except for manifests."""
    known = {} if before is None else before.snapshots
    lists = [found.fields.manifest_list for number, found in change.metadata.snapshots.items() if number not in known]
    return [
        *(file.live.path for file in change.difference.added),
        *(file.file_path for file in change.difference.deletes_added),
        *(path for path in lists if path is not None),
    ]


def _without_stamp(metadata: IcebergMetadata) -> IcebergMetadata:
    return msgspec.structs.replace(metadata, properties=settable(metadata.properties))
