"""Locations: where a client may put a table, and which files the server reads and writes for it.

Everything is below the warehouse or `lake.roots`. A client that could name any path would have the server read files
with its own rights, and the daemon delete them when the table is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from astha.settings import Settings
from astha.subscribers.context import LakeSettings
from components.commands.catalog.errors import BadRequest
from components.commands.catalog.names import TableIdentity
from components.lib.lake.storage.location_checks import free_default, overlap, require_free
from components.lib.lake.storage.locations import BadLocation, canonical, join
from components.lib.lake.storage.roots import Roots
from components.lib.lake.table_lookup import full_name
from registry.contract import MetadataStore
from registry.engines import parse_url, sqlite_path
from registry.models import LakeTable

_INSIDE = "metadata"
"""Roots are asked about files; this names one inside a table's location."""


@dataclass(frozen=True)
class Locations:
    """`registry_file` is that of a SQLite registry."""

    store: MetadataStore
    warehouse: str
    roots: Roots
    registry_file: Path | None = None

    @classmethod
    def of(cls, settings: Settings, store: MetadataStore) -> Locations:
        registry = settings.registry
        file = None if registry.is_postgres else sqlite_path(parse_url(registry.url.get_secret_value()))
        return cls(store, canonical(settings.lake.warehouse), lake_roots(settings.lake), file)

    async def choose(self, table: TableIdentity, requested: str | None, *, moves: bool = False) -> str:
        """Returns the location of a new table: the client's, in its canonical form, or the default one. Raises
        BadRequest if it is not inside a root or not free. A table that `moves` does not stand in its own way.
        """
        tables = await self.store.list_tables()
        if moves:
            tables = [other for other in tables if (other.database, other.name) != table]
        return await asyncio.to_thread(self._choose, table, requested, tables)

    def _choose(self, table: TableIdentity, requested: str | None, tables: Sequence[LakeTable]) -> str:
        if requested is None:
            return free_default(self.warehouse, table.namespace, table.name, tables)
        try:
            location = _absolute(requested)
            self._require(join(location, _INSIDE))
            require_free(location, tables, warehouse=self.warehouse, registry_file=self.registry_file)
        except BadLocation as error:
            raise BadRequest(f"location: {error}") from error
        return location

    async def metadata_to_register(self, requested: str) -> str:
        """Returns the canonical location of a metadata file that a client names. Raises BadRequest if the server must
        not read it.
        """
        try:
            location = _absolute(requested)
            await asyncio.to_thread(self._require, location)
        except BadLocation as error:
            raise BadRequest(f"metadata-location: {error}") from error
        return location

    def require_writable(self, metadata_file: str, table_location: str) -> None:
        """Raises BadRequest if the server must not write there: a property of the table names the directory. Blocks,
        because symbolic links are resolved.
        """
        refusal = self.roots.extended([canonical(table_location)]).refusal(metadata_file)
        if refusal is not None:
            raise BadRequest(f"write.metadata.path: {refusal}")

    async def require_own_files(self, location: str, paths: Sequence[str]) -> None:
        """Raises BadRequest if a data file belongs to another table: dropping this one would delete it."""
        prefix = f"{location.rstrip('/')}/"
        elsewhere = [path for path in paths if not path.startswith(prefix)]
        if not elsewhere:
            return
        others = [table for table in await self.store.list_tables() if not overlap(table.location, location)]
        found = next(
            ((path, table) for path in elsewhere for table in others if path.startswith(f"{table.location}/")), None
        )
        if found is not None:
            path, table = found
            raise BadRequest(f"the file {path} is inside the location of {full_name(table)}: copy it first")

    def _require(self, uri: str) -> None:
        refusal = self.roots.refusal(uri)
        if refusal is not None:
            raise BadLocation(f"{uri} is not below the warehouse or lake.roots: {refusal}")


def _absolute(requested: str) -> str:
    if "://" not in requested and not requested.startswith(("file:/", "/")):
        raise BadLocation(f"{requested[:200]!r} is relative: write file:///absolute/path or s3://bucket/prefix")
    return canonical(requested)


def lake_roots(lake: LakeSettings) -> Roots:
    return Roots(canonical(location) for location in (lake.warehouse, *lake.roots))
