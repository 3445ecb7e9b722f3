"""A minimal in-memory registry: consumer groups and topics, with one commit at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

from astha.events import Commit, Transaction
from astha.testing import FakeRegistry
from astha.testing.registry import FakeSnapshot
from registry.contract import ConsistentRead, MetadataStore
from registry.errors import Fenced, Unavailable
from registry.json_text import JsonText
from registry.models import ConsumerGroup, DaemonLease, LedgerEntry, Topic
from registry.position import Position

GROUPS, TOPICS = "consumer_groups", "topics"
LEASE = DaemonLease("astha", "test", 1, 0, 0)


def group(name: str, version: int = 0) -> ConsumerGroup:
    return ConsumerGroup(name, 0, version)


def topic(name: str) -> Topic:
    return Topic(name, 1, None, JsonText("{}"), 0, 0)


class SmallRegistry(FakeRegistry):
    """A `FakeRegistry` with what lanes and leadership ask of a store. `down` makes every verb fail."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 10  # between positions
        self.ledger: dict[str, LedgerEntry] = {}
        self.epoch = 1
        self.down = False
        self.invisible = 0  # snapshots to come that do not see the last commit yet
        self.before_ledger: asyncio.Event | None = None  # writes of the ledger wait for it

    @property
    def store(self) -> MetadataStore:
        return cast("MetadataStore", self)

    def truncate(self) -> Transaction:
        self.last = Position(self.last + self.step)
        self.rows[ConsumerGroup].clear()
        return Transaction(Commit(self.last, self.last, 0), [], frozenset({GROUPS}), 0, frozenset({GROUPS}))

    # -- the verbs that lanes use -------------------------------------------------------------------------

    async def position(self) -> Position:
        return self.last

    @asynccontextmanager
    async def consistent_read(self, tables: Iterable[str] = ()) -> AsyncIterator[ConsistentRead]:
        self._answer()
        seen = self.last
        if self.invisible:
            self.invisible -= 1
            seen = Position(self.last - self.step)
        yield FakeSnapshot({kind: list(rows.values()) for kind, rows in self.rows.items()}, seen)

    async def read_ledger(self, group: str | None = None) -> list[LedgerEntry]:
        self._answer()
        return [entry for entry in self.ledger.values() if group in (None, entry.group)]

    async def write_ledger(self, entries: Sequence[LedgerEntry], lease: DaemonLease) -> None:
        self._answer()
        if self.before_ledger is not None:
            await self.before_ledger.wait()
        if lease.epoch != self.epoch:
            raise Fenced("another epoch")
        self.ledger.update((entry.component, entry) for entry in entries)

    async def take_daemon_lease(
        self, name: str, holder: str, ttl_ms: int, *, dead: DaemonLease | None = None
    ) -> DaemonLease | None:
        self._answer()
        self.epoch += 1
        return DaemonLease(name, holder, self.epoch, 0, ttl_ms)

    async def renew_daemon_lease(self, lease: DaemonLease, ttl_ms: int) -> DaemonLease:
        self._answer()
        if lease.epoch != self.epoch:
            raise Fenced("another epoch")
        return lease

    async def release_daemon_lease(self, lease: DaemonLease) -> bool:
        return True

    def _answer(self) -> None:
        if self.down:
            raise Unavailable("the registry is down")
