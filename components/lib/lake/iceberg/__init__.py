"""Iceberg: the catalog, its tables, and commits to them. The one place from which anybody commits (decision 0010).

    tables = IcebergTables(open_catalog(url, lake), identity)        blocking throughout: not for an event loop's thread
    tables.load(table)                                               the catalog's table of the registry's, or None
    Stamp.read(loaded.metadata)                                      what the last commit says of itself
    live_files(loaded), live_digest(loaded)                          what the manifests say
    tables.commit(table, lambda commit: commit.set_tag("v1", 42))    one atomic commit, decided anew after a conflict

Errors: `TableProblem` concerns one table and needs a person, `TableUnavailable` concerns one table and passes,
`CatalogUnavailable` concerns all of them and passes.
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
    PartitionPaths,
    data_files,
    dated_files,
    files_by_path,
    live_digest,
    live_files,
    require_format,
    require_supported,
)
from components.lib.lake.iceberg.stamp import Stamp
from components.lib.lake.iceberg.tables import IcebergTables, identifier_of

__all__ = [
    # the catalog
    "CatalogProbe", "IcebergTables", "RegistryCatalog", "identifier_of", "open_catalog",
    # commits
    "SnapshotChange", "Retention", "Stamp", "TableCommit",
    # what is there
    "PartitionPaths", "data_files", "dated_files", "files_by_path", "live_digest", "live_files", "require_format",
    "require_supported",
    # errors
    "BadFile", "CatalogUnavailable", "ForeignCommit", "ForeignTable", "TableUnavailable", "TableProblem",
    "Unsupported", "with_mapped_errors",
]  # fmt: skip
