"""All verbs that the SQL backends share."""

from __future__ import annotations

from registry.stores.sql.agents import SqlAgents
from registry.stores.sql.catalog_commits import SqlCatalogCommits
from registry.stores.sql.compactions import SqlCompactions
from registry.stores.sql.consistent_read import SqlReadAndLoad
from registry.stores.sql.daemon_state import SqlDaemonState
from registry.stores.sql.iceberg_catalog import SqlIcebergCatalog
from registry.stores.sql.lake_locations import SqlLakeLocations
from registry.stores.sql.segments import SqlSegments
from registry.stores.sql.snapshots import SqlSnapshots
from registry.stores.sql.upload_intents import SqlUploadIntents


class SqlVerbs(
    SqlSegments,
    SqlAgents,
    SqlCatalogCommits,
    SqlSnapshots,
    SqlUploadIntents,
    SqlCompactions,
    SqlDaemonState,
    SqlIcebergCatalog,
    SqlLakeLocations,
    SqlReadAndLoad,
):
    """What each backend completes with its connections, transactions and errors."""
