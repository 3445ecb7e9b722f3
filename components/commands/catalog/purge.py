"""The metadata files of a table that is dropped with its files: they are handed to the cleaner."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from pyiceberg.io import FileIO
from pyiceberg.manifest import read_manifest_list

from components.commands.catalog.errors import CatalogError
from components.commands.catalog.metadata_files import MetadataFiles
from components.lib.lake.engine_commits.errors import EngineCommitError
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.engine_commits.metadata_file import metadata_directory
from components.lib.lake.iceberg.catalog_thread import call_with_timeout
from components.lib.lake.iceberg.metadata_places import other_places
from components.lib.lake.storage.locations import canonical
from components.lib.lake.storage.table_places import own_files
from registry.contract import MetadataStore
from registry.errors import RegistryError

log = structlog.get_logger(__name__)

OWNER = "catalog"
_PURPOSE = "metadata"
_TIMEOUT_S = 60.0


class Purge:
    def __init__(self, store: MetadataStore, files: MetadataFiles, io: FileIO) -> None:
        self._store = store
        self._files = files
        self._io = io

    async def metadata_files(self, location: str, table_id: int | None) -> list[str]:
        """Returns the files that the metadata refers to, and that no other table contains. Unreadable
        ones are left where they are: a table whose metadata is damaged must be droppable.
        """
        try:
            metadata = await self._files.parsed(location)
            others = [place for place, _ in await other_places(self._store, table_id, location)]
            return [location, *await call_with_timeout(lambda: self._referenced(metadata, others), _TIMEOUT_S)]
        except (CatalogError, EngineCommitError, TimeoutError) as error:
            log.warning("metadata files are not deleted with their table", metadata=location, error=str(error))
            return []

    async def hand_over(self, paths: list[str]) -> None:
        """Call it after the drop: the cleaner does not ask the catalog."""
        if not paths:
            return
        try:
            await self._store.record_intents(paths, purpose=_PURPOSE, owner=OWNER)
        except RegistryError as error:
            log.warning("metadata files of a dropped table are not deleted", files=len(paths), error=str(error))

    def _referenced(self, metadata: IcebergMetadata, others: Sequence[str]) -> list[str]:
        found = {entry.metadata_file for entry in metadata.metadata_log}
        for snapshot in metadata.snapshots.values():
            manifest_list = snapshot.fields.manifest_list
            if manifest_list is None:
                continue
            found.add(manifest_list)
            try:
                found.update(file.manifest_path for file in read_manifest_list(self._io.new_input(manifest_list)))
            except (OSError, ValueError, EngineCommitError) as error:
                log.warning("manifests are not deleted with their table", list=manifest_list, error=str(error))
        directory = metadata_directory(metadata)  # a manifest list may name files of another table
        return own_files(sorted(found), location=canonical(metadata.location), directory=directory, others=others)
