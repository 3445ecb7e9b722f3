"""Iceberg: the catalog, its tables, and commits to them. All commits are made here (decision 0010).

    tables = IcebergTables(open_catalog(url, lake), identity)        everything blocks: not for an event loop's thread
    tables.load(table)                                               the Iceberg table of a registry's table, or None
    Stamp.read(loaded.metadata)                                      position and digest of the last commit
    live_files(loaded), live_digest(loaded)                          the files in the manifests
    tables.commit(table, lambda commit: commit.set_tag("v1", 42))    one atomic commit, built again after a conflict

Errors: `TableProblem` concerns one table and needs the operator, `TableUnavailable` concerns one table and is
temporary, `CatalogUnavailable` concerns all tables and is temporary.
"""

from components.lib.lake.iceberg.catalog import RegistryCatalog, open_catalog
from components.lib.lake.iceberg.commits import SnapshotChange, TableCommit
from components.lib.lake.iceberg.errors import (
    BadFile,
    CatalogUnavailable,
    ForeignCommit,
    ForeignTable,
    TableProblem,
    TableUnavailable,
    Unsupported,
    with_mapped_errors,
)
from components.lib.lake.iceberg.probe import CatalogProbe
from components.lib.lake.iceberg.retention import Retention
from components.lib.lake.iceberg.snapshot_files import (
    LiveDeleteFile,
    LiveFileSet,
    PartitionPaths,
    data_files,
    dated_files,
    delete_files,
    files_by_path,
    live_digest,
    live_files,
    may_have_delete_files,
    require_format,
    require_supported,
)
from components.lib.lake.iceberg.staged_files import StagedFiles
from components.lib.lake.iceberg.stamp import Stamp
from components.lib.lake.iceberg.tables import IcebergTables, identifier_of

__all__ = [
    # the catalog
    "CatalogProbe", "IcebergTables", "RegistryCatalog", "identifier_of", "open_catalog",
    # commits
    "SnapshotChange", "Retention", "StagedFiles", "Stamp", "TableCommit",
    # files of a snapshot
    "LiveDeleteFile", "LiveFileSet", "PartitionPaths", "data_files", "dated_files", "delete_files", "files_by_path",
    "live_digest", "live_files", "may_have_delete_files", "require_format", "require_supported",
    # errors
    "BadFile", "CatalogUnavailable", "ForeignCommit", "ForeignTable", "TableUnavailable", "TableProblem",
    "Unsupported", "with_mapped_errors",
]  # fmt: skip
