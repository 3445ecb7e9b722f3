"""Commits by engines through the REST catalog: a request becomes new metadata and a difference of files.

Everything blocks and nothing is stored here: the catalog's process calls it in threads, and commits the result in one
transaction of the registry (decision 0024).

    request = CommitRequest.parse(body)                      requirements and updates
    request.check(base)                                      the base is None if the table does not exist
    metadata = request.apply(base, base_location, now_ms=now)  the same object if nothing changes
    change = read_change(io, base, metadata, lists)          files, operation, engine, whether a version is needed
    draft = adopted_version(metadata, base, newest_version)  the schema version, if one is needed
    stamped = change.stamped(schema_version=3, table_id=7, registry=identity)
    file = metadata_file(stamped, base_location)             location and bytes
    change.difference.drafts(versions_by_spec(metadata, versions), 3)

Errors: `InvalidCommit` (400), `CommitConflict` (409), `UnreadableFiles` (400), and `CatalogUnavailable` of the Iceberg
library if the storage does not answer.
"""

from components.lib.lake.engine_commits.adopted_schema import (
    adopted_version,
    changed_properties,
    needs_version,
    versions_by_spec,
)
from components.lib.lake.engine_commits.commit_request import CommitRequest, TableIdentifier, parse_transaction
from components.lib.lake.engine_commits.errors import (
    CommitConflict,
    EngineCommitError,
    InvalidCommit,
    UnreadableFiles,
)
from components.lib.lake.engine_commits.file_difference import (
    FileDifference,
    read_difference,
)
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata, StoredSnapshot
from components.lib.lake.engine_commits.manifest_lists import ManifestLists
from components.lib.lake.engine_commits.metadata_file import MetadataFile, metadata_file
from components.lib.lake.engine_commits.new_table import CreateRequest
from components.lib.lake.engine_commits.table_change import TableChange, read_change

__all__ = [
    # requests
    "CommitRequest", "CreateRequest", "TableIdentifier", "parse_transaction",
    # metadata
    "IcebergMetadata", "MetadataFile", "StoredSnapshot", "metadata_file",
    # files
    "FileDifference", "ManifestLists", "TableChange", "read_change", "read_difference",
    # schema versions
    "adopted_version", "changed_properties", "needs_version", "versions_by_spec",
    # errors
    "CommitConflict", "EngineCommitError", "InvalidCommit", "UnreadableFiles",
]  # fmt: skip
