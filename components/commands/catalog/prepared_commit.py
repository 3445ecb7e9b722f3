"""A table's part of a commit, ready to be stored."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from components.commands.catalog.names import TableIdentity
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata
from components.lib.lake.engine_commits.metadata_file import MetadataFile
from registry.inputs import CatalogCommit

_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"


class PreparedCommit(msgspec.Struct, frozen=True, kw_only=True):
    """`commit` and `file` are None if nothing changes: the request was repeated, or had no effect."""

    table: TableIdentity
    base_location: str | None  # of the metadata that it was prepared on; None: the table does not exist
    base: IcebergMetadata | None
    metadata: IcebergMetadata
    json: bytes
    commit: CatalogCommit | None = None
    file: MetadataFile | None = None

    @property
    def location(self) -> str:
        """The location of the metadata after the commit."""
        found = self.base_location if self.file is None else self.file.location
        assert found is not None  # noqa: S101  (a table without metadata gets a file)
        return found

    @property
    def replaced(self) -> Sequence[str]:
        """Metadata files that the table does not refer to any more, if it wants them deleted."""
        if self.base is None or self.metadata.properties.get(_DELETE_AFTER_COMMIT, "false").lower() != "true":
            return []
        kept = {entry.metadata_file for entry in self.metadata.metadata_log}
        return [entry.metadata_file for entry in self.base.metadata_log if entry.metadata_file not in kept]
