"""Chunks of large commits: announced before they are written, so that those of dead writers are found and removed.

A writer puts an announcement, then its chunks. Its commit deletes the announcement, under the condition that it was not
marked as abandoned. Who finds one that is a day old marks it, deletes the chunks, then the announcement. So a writer
that is only slow can't commit chunks that are gone: its commit fails, and is repeated from its reads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from registry.stores.dynamodb.client import Action, Condition, ConditionFailed, DynamoClient
from registry.stores.dynamodb.layout import ItemKey, partition_key, sort_key

ANNOUNCEMENTS = "staging"
"""The partition key of announcements, whose sort keys begin with their time."""

_ABANDONED_AFTER_MS = 24 * 3_600_000
_MOST_AT_ONCE = 10


def chunk_key(transaction: str, number: int) -> ItemKey:
    return partition_key("chunks", transaction), sort_key(number)


class Announcement:
    def __init__(self, transaction: str) -> None:
        self._transaction = transaction
        self.key: ItemKey = (ANNOUNCEMENTS, sort_key(_now_ms(), transaction))

    async def put(self, client: DynamoClient) -> None:
        await client.put_many([(self.key, {"tx": self._transaction})])

    def deletion(self) -> Action:
        """Part of the commit."""
        return Action("delete", self.key, condition=Condition({"tx": self._transaction, "abandoned": None}))


async def stage(client: DynamoClient, name: str, chunks: Sequence[bytes], first: int) -> None:
    """Writes chunks that are not read before the commit. They expire only once they are applied."""
    await client.put_many([(chunk_key(name, first + number), {"body": chunk}) for number, chunk in enumerate(chunks)])


async def remove_abandoned(client: DynamoClient) -> None:
    """Removes chunks of writers that died before their commit."""
    until = sort_key(max(_now_ms() - _ABANDONED_AFTER_MS, 0))
    found, _ = await client.query(ANNOUNCEMENTS, high=until, limit=_MOST_AT_ONCE)
    for item in found:
        name = str(item.attributes["tx"])
        marked = Action("put", item.key, {"tx": name, "abandoned": 1}, Condition({"tx": name}))
        with suppress(ConditionFailed):  # committed just now, or removed by another caller
            await client.write_transaction([marked])
            more: str | None = None
            while True:
                chunks, more = await client.query(chunk_key(name, 0)[0], after=more)
                await client.delete_many([chunk.key for chunk in chunks])
                if more is None:
                    break
            await client.delete_many([item.key])


def _now_ms() -> int:
    return int(time.time() * 1000)
