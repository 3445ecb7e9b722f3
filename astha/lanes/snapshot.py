"""The snapshot that a refresh reads, and which transactions it contains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec

from astha.clock import LoopClock
from astha.events import Commit, Transaction
from registry.contract import ConsistentRead, MetadataStore
from registry.errors import Unavailable
from registry.json_text import JsonText, parse_json_as, to_json_text
from registry.position import (
    AnySnapshotVisibility,
    Position,
    SequenceVisibility,
    SnapshotVisibility,
    TimestampVisibility,
)

_VISIBLE_WITHIN_S = 60.0

_LATER_NS = 1_000_000
"""On CockroachDB the positions of commits of one nanosecond follow each other: they may be this much after it."""


class RefreshedSnapshot(msgspec.Struct, frozen=True):
    """The visibility of the snapshot that a refresh read. Every transaction in it has a position up to `until`."""

    visibility: AnySnapshotVisibility
    until: Position

    def contains(self, transaction: Transaction) -> bool:
        commit = transaction.commit
        return commit.position <= self.until and self.visibility.contains(commit.transaction, commit.position)

    def splits(self, transaction: Transaction) -> bool:
        """Whether the snapshot contains only a part of it: see `SequenceVisibility.splits`."""
        commit, visibility = transaction.commit, self.visibility
        return isinstance(visibility, SequenceVisibility) and visibility.splits(commit.transaction, commit.position)

    def to_json(self) -> JsonText:
        return to_json_text(self)

    @classmethod
    def from_json(cls, text: JsonText) -> RefreshedSnapshot:
        return parse_json_as(text, cls)


@asynccontextmanager
async def snapshot_after(
    store: MetadataStore, tables: frozenset[str], seen: Iterable[Commit], clock: LoopClock
) -> AsyncIterator[tuple[ConsistentRead, RefreshedSnapshot]]:
    """Opens a snapshot of these tables that contains every commit in `seen`. Raises `Unavailable` if there is none
    within a minute.

    On PostgreSQL a commit reaches the stream a moment before it becomes visible to others (longer, if the writer
    waits for a synchronous standby), so a snapshot may lack a transaction that was delivered. Then another is taken.
    """
    missing = list(seen)
    deadline = clock.monotonic() + _VISIBLE_WITHIN_S
    while True:
        async with store.consistent_read(tables) as read:
            visibility = read.visibility
            missing = [commit for commit in missing if not visibility.contains(commit.transaction, commit.position)]
            if not missing:
                until = await store.position()
                if isinstance(visibility, TimestampVisibility):  # another node's clock may be behind
                    until = Position(max(until, visibility.last) + _LATER_NS)
                yield read, RefreshedSnapshot(_serializable(visibility), until)
                return
        if clock.monotonic() > deadline:
            raise Unavailable(f"transaction {missing[0].transaction} was committed but is still not visible")
        await asyncio.sleep(0.002)


def _serializable(visibility: SnapshotVisibility) -> AnySnapshotVisibility:
    if isinstance(visibility, AnySnapshotVisibility):
        return visibility
    raise TypeError(f"the ledger can't store a snapshot visibility of type {type(visibility).__name__}")
