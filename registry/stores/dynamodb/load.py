"""Filling an empty registry in one commit: rows are staged as chunks, which are not read before the commit.

A lock in the state item keeps other writers out. It is renewed while the load runs, and broken when it is not renewed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from registry.errors import AlreadyExists, Conflict, NotFound, Unavailable
from registry.models import PUBLISHED, UNPUBLISHED, Row
from registry.stores.dynamodb.base import DynamoBase
from registry.stores.dynamodb.changes import Change, encode_changes
from registry.stores.dynamodb.consistent_read import DynamoConsistentRead
from registry.stores.dynamodb.constraints import check_values, parents
from registry.stores.dynamodb.layout import ItemKey
from registry.stores.dynamodb.staging import chunk_key
from registry.stores.dynamodb.state import REGISTRY
from registry.stores.dynamodb.transaction import Transaction

_RENEWED_EVERY_S = 5.0


class DynamoBulkLoad:
    """Keeps the keys of the loaded rows in memory, about 300 bytes per row, to find duplicates and missing parents."""

    def __init__(self, transaction: Transaction, name: str) -> None:
        self._transaction = transaction
        self._name = name
        self._keys: set[ItemKey] = set()
        self._counts: Counter[type[Row]] = Counter()
        self.chunks = 0

    async def add(self, rows: Sequence[Row]) -> None:
        changes = [Change(type(row), None, row) for row in rows]
        for change, row in zip(changes, rows, strict=True):
            check_values(row)
            for key in (change.key, *change.pointers(row, unique=True)):
                if key in self._keys:
                    raise AlreadyExists(f"{row.table}: two rows have the key {key[1]}")
                self._keys.add(key)
            for kind, key in parents(row):
                if key not in self._keys:
                    raise NotFound(f"a row of {kind.table} that a row of {row.table} references does not exist")
            if hasattr(row, "id"):
                self._transaction.keep_ids_above(type(row), getattr(row, "id"))  # noqa: B009  (some kinds have one)
            self._counts[type(row)] += 1
        if changes:
            chunks = encode_changes(changes)
            await self._transaction.stage(self._name, chunks, first=self.chunks)
            self.chunks += len(chunks)

    async def count(self, kind: type[Row]) -> int:
        return self._counts[kind]


class DynamoLoads(DynamoBase):
    @asynccontextmanager
    async def load(self) -> AsyncIterator[DynamoBulkLoad]:
        transaction = await self._locked()
        renewing = asyncio.create_task(_renew(transaction), name="renew the lock of the bulk load")
        load = None
        committed = False
        try:
            following = transaction.following()
            load = DynamoBulkLoad(transaction, following.transaction)
            await self._require_empty()
            yield load
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            following = transaction.following(following.transaction)
            committed = await transaction.commit_staged(following, [], staged=load.chunks)
            if not committed:
                raise Conflict(f"the registry at {self.url} was filled by another process, or the lock was lost")
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            if not committed:
                await asyncio.shield(self._abandoned(transaction, load, following.transaction))

    async def _locked(self) -> Transaction:
        deadline = self._clock_s() + self._busy_timeout_s
        while True:
            state = await self._unlocked(REGISTRY, deadline)
            transaction = Transaction(self._client, REGISTRY, state, self._clock.now_ms())
            if await transaction.set_lock(f"{uuid.uuid4().hex}:0"):
                return transaction
            if self._clock_s() > deadline:
                raise Unavailable(f"{self.url}: other writers were faster: try again")

    async def _require_empty(self) -> None:
        state = await self._settled(REGISTRY)
        snapshot = DynamoConsistentRead(self._client, state)
        for kind in (*PUBLISHED, *UNPUBLISHED):
            async for rows in snapshot.rows(kind, page=1):
                if rows:
                    raise Conflict(f"the registry at {self.url} is not empty: it has {kind.table}", [kind.table])

    async def _abandoned(self, transaction: Transaction, load: DynamoBulkLoad | None, name: str) -> None:
        await transaction.set_lock(None)
        if load is not None:
            with suppress(Unavailable):
                await self._client.delete_many([chunk_key(name, number) for number in range(load.chunks)])


async def _renew(transaction: Transaction) -> None:
    while True:
        await asyncio.sleep(_RENEWED_EVERY_S)
        owner, _, beats = str(transaction.lock).partition(":")
        with suppress(Unavailable):
            if not await transaction.set_lock(f"{owner}:{int(beats) + 1}"):
                return
