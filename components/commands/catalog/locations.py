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
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.engine_commits.metadata_file import DIRECTORY
from components.lib.lake.iceberg.catalog import NAME
from components.lib.lake.iceberg.metadata_places import other_places
from components.lib.lake.storage.location_checks import free_default, overlap, require_free
from components.lib.lake.storage.locations import BadLocation, Location, canonical, join, parse, parse_file
from components.lib.lake.storage.roots import Roots
from components.lib.lake.storage.table_places import TablePlaces
from components.lib.lake.table_lookup import full_name
from registry.contract import MetadataStore
from registry.engines import parse_url, sqlite_path
from registry.models import LakeTable

_DIRECTORIES = (DIRECTORY, "write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties of a table that say where engines write its files."""

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
        file = sqlite_path(parse_url(registry.url.get_secret_value())) if registry.backend == "sqlite" else None
        return cls(store, canonical(settings.lake.warehouse), lake_roots(settings.lake), file)

    async def choose(self, table: TableIdentity, requested: str | None, *, table_id: int | None = None) -> str:
        """Returns the location of a new table: the client's, in its canonical form, or the default one. Raises
        BadRequest if it is not inside a root or not free. With `table_id` it is that of a table that moves.
        """
        tables = await self._others(table_id)
        namespaces = [] if requested is None else await self.store.list_catalog_namespaces(NAME)
        return await asyncio.to_thread(self._choose, table, requested, tables, namespaces)

    def _choose(
        self, table: TableIdentity, requested: str | None, tables: Sequence[LakeTable], namespaces: Sequence[str]
    ) -> str:
        try:
            if requested is None:
                return free_default(self.warehouse, table.namespace, table.name, tables)
            location = _absolute(requested)
            self._require(join(location, _INSIDE))
            require_free(
                location,
                tables,
                warehouse=self.warehouse,
                registry_file=self.registry_file,
                namespaces=namespaces,
            )
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

    async def require_own_files(self, location: str, paths: Sequence[str], table_id: int | None) -> None:
        """Raises BadRequest if a file belongs to another table: dropping this one would delete it. `table_id` is None
        for a new table. `location` is this one's.
        """
        prefix = f"{location.rstrip('/')}/"
        unusual = [path for path in paths if not path.startswith(prefix) or "/." in path]
        elsewhere = await asyncio.to_thread(_elsewhere, location, unusual) if unusual else []
        if not elsewhere:
            return
        others = await self._others(table_id)
        found = await asyncio.to_thread(_first_foreign, location, elsewhere, others)
        if found is not None:
            path, table = found
            raise BadRequest(f"the file {path} is inside the location of {full_name(table)}: copy it first")

    async def require_own_directories(
        self, base: IcebergMetadata | None, metadata: IcebergMetadata, table_id: int | None, pointer: str | None
    ) -> None:
        """Raises BadRequest if a property that the commit changes has files written where another table is. `pointer`
        is the table's current metadata file.
        """
        before, properties = {} if base is None else base.properties, metadata.properties
        wanted = {
            name: properties[name] for name in _DIRECTORIES if properties.get(name) not in (None, before.get(name))
        }
        for name, value in wanted.items():
            try:
                directory = _absolute(value)
            except BadLocation as error:
                raise BadRequest(f"{name}: {error}") from error
            if directory.startswith(f"{metadata.location.rstrip('/')}/"):
                continue
            others = await other_places(self.store, table_id, pointer)
            taken = await asyncio.to_thread(_overlapping, directory, others)
            if taken is not None:
                raise BadRequest(f"{name}: {directory} shares files with {taken}: choose a place for this table alone")

    async def _others(self, table_id: int | None) -> list[LakeTable]:
        return [table for table in await self.store.list_tables() if table.id != table_id]

    def _require(self, uri: str) -> None:
        refusal = self.roots.refusal(uri)
        if refusal is not None:
            raise BadLocation(f"{uri} is not below the warehouse or lake.roots: {refusal}")


def _elsewhere(location: str, paths: Sequence[str]) -> list[str]:
    """Returns the paths that are not inside the location, whichever way they are spelled."""
    parts = parse(location)
    prefix = f"{parts.key.rstrip('/')}/"
    found = []
    for path in paths:
        file = _parsed_file(path)
        if file is None or (file.scheme, file.root) != (parts.scheme, parts.root) or not file.key.startswith(prefix):
            found.append(path)
    return found


def _parsed_file(path: str) -> Location | None:
    try:
        return parse_file(path)
    except BadLocation as error:
        raise BadRequest(f"the file {path}: {error}") from error


def _first_foreign(location: str, paths: Sequence[str], others: Sequence[LakeTable]) -> tuple[str, LakeTable] | None:
    places: TablePlaces[LakeTable | None] = TablePlaces(
        [(location, None), *((table.location, table) for table in others)]
    )
    for path in paths:
        foreign = next((owner for owner in places.owners(path) if owner is not None), None)
        if foreign is not None:
            return path, foreign
    return None


def _overlapping(directory: str, others: Sequence[tuple[str, str]]) -> str | None:
    return next((name for place, name in others if overlap(directory, place)), None)


def _absolute(requested: str) -> str:
    if "://" not in requested and not requested.startswith(("file:/", "/")):
        raise BadLocation(f"{requested[:200]!r} is relative: write file:///absolute/path or s3://bucket/prefix")
    return canonical(requested)


def lake_roots(lake: LakeSettings) -> Roots:
    return Roots(canonical(location) for location in (lake.warehouse, *lake.roots))
