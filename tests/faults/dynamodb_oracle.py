"""The oracle on DynamoDB Local, behind a proxy through which all of its clients go.

DynamoDB Local responds to a write before it is on disk, and a killed one loses what it responded to last. AWS does not.
So a kill first cuts off all clients, then makes the server write something else and answer, which puts everything that
clients were told on disk, and kills it then: requests in flight are lost or not, as anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from registry.contract import MetadataStore
from registry.dynamodb_url import parse_endpoint
from registry.errors import Conflict
from registry.models import ConsumerGroup, ConsumerOffset
from registry.stores.dynamodb.client import Action, DynamoClient
from registry.stores.dynamodb.store import DynamoStore
from registry.stores.dynamodb.transaction import Transaction
from tests.doubles.proxy import TcpProxy
from tests.faults.daemon_process import ProcessOptions
from tests.faults.durable_component import PAIR
from tests.faults.oracle import Oracle, Process
from tests.faults.writers import PAIRS, Writer
from tests.servers.dynamodb import DynamoServer

LEASE_S = 15.0
_FLUSHES = 5


class DynamoWriter(Writer):
    async def _pairs(self, store: MetadataStore) -> None:
        value = self._random.randrange(1 << 40)
        chosen = sorted(self._random.sample(range(PAIRS), self._random.choice([1, 1, 2, 4])))
        gone = {pair for pair in chosen if self._random.random() < 0.1}
        taken_back = self._random.random() < 0.1

        async def change(tx: Transaction) -> None:
            for pair in chosen:
                for side in "ab":
                    await _put(tx, f"{PAIR}{pair}{side}", None if pair in gone else value)
            if taken_back:
                raise Conflict("taken back", [])

        await transact(store, change)

    async def _many(self, store: MetadataStore) -> None:
        count, value = self._random.choice([80, 150, 600]), self._random.randrange(1 << 40)

        async def change(tx: Transaction) -> None:
            for row in await tx.rows(ConsumerGroup, where=lambda row: row.group_id.startswith("many-")):
                if int(row.group_id.removeprefix("many-")) >= count:
                    tx.delete(row)
            for number in range(count):
                await _put(tx, f"many-{number}", value)

        await transact(store, change)

    async def _truncate(self, store: MetadataStore) -> None:
        async def change(tx: Transaction) -> None:
            for group in await tx.rows(ConsumerGroup):
                for row in await tx.rows(ConsumerOffset, group.group_id):
                    tx.delete(row)

        await transact(store, change)


async def transact(store: MetadataStore, change: Callable[[Transaction], Awaitable[None]]) -> None:
    """One transaction by hand, as verbs make theirs."""
    assert isinstance(store, DynamoStore)
    await store._transact(change)


async def _put(tx: Transaction, name: str, value: int | None) -> None:
    old = await tx.get(ConsumerGroup, name)
    if value is None:
        if old is not None:
            tx.delete(old)
    elif old is None:
        tx.insert(ConsumerGroup(name, 0, value))
    else:
        tx.replace(old, updated_at=value)


class DynamoOracle(Oracle):
    def __init__(
        self, server: DynamoServer, proxy: TcpProxy, table: str, directory: Path, seed: str, troubles: dict[str, int]
    ) -> None:
        self._direct = parse_endpoint(server.url(table))
        url = f"dynamodb://local/{table}?endpoint=http://127.0.0.1:{proxy.port}"
        super().__init__(url, url, directory, seed, troubles)
        # DynamoDB Local does one request at a time: a renewal of the lease may wait behind a hundred.
        self.process = Process(ProcessOptions(url, url, str(directory), seed, lease_s=LEASE_S), seed)
        self.processes = [self.process]
        self.proxy = proxy
        self._dynamodb = server

    def writer(self, seed: str) -> Writer:
        return DynamoWriter(self.url, seed)

    async def _restart_server(self) -> None:
        assert self.proxy is not None
        self.proxy.refuse()
        await self._flush()
        await asyncio.to_thread(self._dynamodb.kill)
        await asyncio.sleep(self.random.choice([0.0, 0.5]))
        await asyncio.to_thread(self._dynamodb.start)
        self.proxy.accept()

    async def _flush(self) -> None:
        client = DynamoClient(self._direct)
        try:
            for number in range(_FLUSHES):
                await client.write_transaction([Action("put", ("flush", "="), {"number": number})])
                assert await client.get(("flush", "=")) is not None
        finally:
            await client.close()
