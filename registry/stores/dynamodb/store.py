"""The registry in a DynamoDB table, as a `MetadataStore`."""

from __future__ import annotations

from registry.models import DatabaseTime
from registry.stores.dynamodb.catalog_commits import DynamoCatalogCommits
from registry.stores.dynamodb.catalog_pointers import DynamoCatalogPointers
from registry.stores.dynamodb.compactions import DynamoCompactions
from registry.stores.dynamodb.consistent_read import DynamoReads
from registry.stores.dynamodb.daemon_state import DynamoDaemonState
from registry.stores.dynamodb.load import DynamoLoads
from registry.stores.dynamodb.segments import DynamoSegments
from registry.stores.dynamodb.snapshots import DynamoSnapshots


class DynamoStore(
    DynamoSegments,
    DynamoCatalogCommits,
    DynamoCatalogPointers,
    DynamoSnapshots,
    DynamoCompactions,
    DynamoDaemonState,
    DynamoReads,
    DynamoLoads,
):
    async def time(self) -> DatabaseTime:
        """By the Date header of a response, which has whole seconds."""
        return DatabaseTime(await self._client.server_time_ms())
