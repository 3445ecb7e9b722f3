"""Requests to the Iceberg catalog that were committed, by their Idempotency-Key."""

from __future__ import annotations

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from registry import validation
from registry.errors import AlreadyCommitted, AlreadyExists
from registry.models import CatalogRequest
from registry.schema import catalog_requests
from registry.stores.sql.base import SqlBase, select_rows

KEPT_REQUESTS_MS = 24 * 3_600_000
"""How long a repeated request is recognized."""

PRUNED_AT_ONCE = 10_000


class SqlCatalogRequests(SqlBase):
    async def get_catalog_request(self, request_key: str) -> CatalogRequest | None:
        validation.catalog_name("request_key", request_key)
        query = select_rows(CatalogRequest).where(catalog_requests.c.request_key == request_key)
        return await self._row(CatalogRequest, query)

    async def _record_request(self, connection: AsyncConnection, request: CatalogRequest | None, now: int) -> None:
        """Call it first: a repetition waits here for the request that it repeats, and finds it committed."""
        if request is None:
            return
        values = {**msgspec.structs.asdict(request), "created_at": now}
        try:
            with self._translating_errors():
                await connection.execute(insert(catalog_requests).values(values))
        except AlreadyExists:
            raise AlreadyCommitted(f"the request {request.request_key} was committed before") from None

    async def _prune_requests(self, connection: AsyncConnection, now: int) -> None:
        column = catalog_requests.c
        stale = (
            select(column.request_key)
            .where(column.created_at <= now - KEPT_REQUESTS_MS)
            .order_by(column.created_at)
            .limit(PRUNED_AT_ONCE)
            .with_for_update(skip_locked=True)  # another commit is pruning it
        )
        await connection.execute(delete(catalog_requests).where(column.request_key.in_(stale)))


def check_request(request: CatalogRequest | None) -> None:
    if request is not None:
        validation.catalog_name("request_key", request.request_key)
        validation.non_empty("fingerprint", request.fingerprint)
        validation.optional("response", request.response, validation.text)
