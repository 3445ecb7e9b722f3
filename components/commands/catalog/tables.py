"""Tables: listed, loaded, renamed and dropped. `table_changes` creates and changes them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import structlog

from components.commands.catalog.errors import AlreadyExists, CatalogError, CommitFailed, NoSuchTable
from components.commands.catalog.idempotency import once
from components.commands.catalog.metadata_files import MetadataFiles, only_referenced_snapshots
from components.commands.catalog.names import TableIdentity, page
from components.commands.catalog.namespaces import Namespaces
from components.commands.catalog.purge import Purge
from components.lib.lake.engine_commits.errors import EngineCommitError
from components.lib.lake.iceberg.catalog import NAME
from components.lib.lake.iceberg.registry_identity import registry_identity
from components.lib.lake.iceberg.stamp import stamped_table_id
from registry import errors as registry_errors
from registry.contract import MetadataStore
from registry.models import CatalogRequest, CatalogTable

log = structlog.get_logger(__name__)


class LoadedTable(NamedTuple):
    """`location` is None for a table that is only staged."""

    location: str | None
    metadata: bytes  # JSON

    @property
    def etag(self) -> str:
        return etag(self.location or "", "all")


class Tables:
    def __init__(self, store: MetadataStore, files: MetadataFiles, namespaces: Namespaces, purge: Purge) -> None:
        self._store = store
        self._files = files
        self._namespaces = namespaces
        self._purge = purge

    async def list_page(self, namespace: str, after: str, size: int, paged: bool) -> tuple[Sequence[str], str | None]:
        """Returns a page of names, and the last of them if more follow; all of them if the client does not page."""
        found: list[CatalogTable] = []
        while True:
            wanted = size + 1
            part = await self._store.list_catalog_tables(NAME, namespace, after=after, limit=wanted)
            found += part
            if paged or len(part) < wanted:
                break
            after = part[-1].table_name
        if not found:
            await self._namespaces.require(namespace)
        return page([row.table_name for row in found], size, paged)

    async def location(self, table: TableIdentity) -> str:
        """Returns the location of its metadata. Raises NoSuchTable."""
        row = await self._store.get_catalog_table(NAME, table.namespace, table.name)
        if row is None or row.metadata_location is None:
            raise NoSuchTable(str(table))
        return row.metadata_location

    async def exists(self, table: TableIdentity) -> bool:
        return await self._store.get_catalog_table(NAME, table.namespace, table.name) is not None

    async def metadata(self, location: str, snapshots: str) -> bytes:
        """Returns the JSON of a metadata file, with `all` snapshots or only those that `refs` name."""
        found = await self._files.read(location)
        return only_referenced_snapshots(found) if snapshots == "refs" else found

    async def load(self, table: TableIdentity) -> LoadedTable:
        location = await self.location(table)
        return LoadedTable(location, await self._files.read(location))

    async def rename(self, source: TableIdentity, destination: TableIdentity, request: CatalogRequest | None) -> None:
        async def rename() -> None:
            table_id = await self._table_id(source, await self.location(source))
            await self._namespaces.require(destination.namespace)
            try:
                await self._store.rename_catalog_table(NAME, *source, *destination, table_id=table_id, request=request)
            except registry_errors.AlreadyCommitted:
                raise
            except registry_errors.NotFound as error:
                raise NoSuchTable(str(source)) from error
            except registry_errors.AlreadyExists as error:
                raise AlreadyExists(f"Table already exists: {destination}") from error

        await once(self._store, request, rename, _nothing)

    async def drop(self, table: TableIdentity, request: CatalogRequest | None, *, purge: bool) -> None:
        """`purge` deletes its files too, after the readers' grace period; the daemon does that."""

        async def drop() -> None:
            location = await self.location(table)
            table_id = await self._table_id(table, location)
            unreferenced = await self._purge.metadata_files(location, table_id) if purge else []
            try:
                await self._store.drop_catalog_table(NAME, *table, purge=purge, table_id=table_id, request=request)
            except registry_errors.NotFound as error:
                raise NoSuchTable(str(table)) from error
            await self._purge.hand_over(unreferenced)

        await once(self._store, request, drop, _nothing)

    async def _table_id(self, table: TableIdentity, location: str) -> int | None:
        """Returns the id of the registry's table, from the stamp: another one may have the name by now. None if the
        metadata can't be read, since a damaged table must be droppable, or if it is not the registry's.
        """
        try:
            metadata = await self._files.parsed(location)
        except (CatalogError, EngineCommitError) as error:
            log.warning("metadata can't be read: the table is found by its name", table=str(table), error=str(error))
            return None
        found = stamped_table_id(metadata.properties, await registry_identity(self._store))
        if found is None and await self._store.get_table(*table) is not None:
            raise CommitFailed(f"the registry has another table named {table}: rename or drop one of them")
        return found


def etag(location: str, snapshots: str) -> str:
    """A metadata file never changes, so its location identifies the content."""
    return f'"{blake2b(f"{snapshots} {location}".encode(), digest_size=16).hexdigest()}"'


async def _nothing() -> None:
    pass
