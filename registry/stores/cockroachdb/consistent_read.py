"""Reads on one connection: it executes one statement at a time, so reads at the same time wait for each other."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from registry.models import Row
from registry.position import SnapshotVisibility
from registry.stores.sql.base import SqlBase
from registry.stores.sql.consistent_read import Key, SqlConsistentRead

R = TypeVar("R", bound=Row)


class CockroachConsistentRead(SqlConsistentRead):
    def __init__(self, store: SqlBase, connection: AsyncConnection, visibility: SnapshotVisibility) -> None:
        super().__init__(store, connection, visibility)
        self._one = asyncio.Lock()

    async def count(self, kind: type[Row]) -> int:
        async with self._one:
            return await super().count(kind)

    async def _page(self, kind: type[R], after: Key | None, limit: int, table_id: int | None) -> list[R]:
        async with self._one:
            return await super()._page(kind, after, limit, table_id)
