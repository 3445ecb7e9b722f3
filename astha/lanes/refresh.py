"""A refresh: the registry as one snapshot, and exactly which transactions it contains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec

from astha.clock import LoopClock
from astha.events import Commit, Transaction
from registry.contract import ConsistentRead, MetadataStore
from registry.errors import Unavailable
from registry.json_text import JsonText, parse_json_as, to_json_text
from registry.position import Position, SequenceVisibility, SnapshotVisibility, XidVisibility

AnySnapshotVisibility: TypeAlias = SequenceVisibility | XidVisibility

_VISIBLE_WITHIN_S = 60.0


class RefreshedSnapshot(msgspec.Struct, frozen=True):
    """What a refresh contained. Beyond `until` the stream can bring nothing of it."""

    place: AnySnapshotVisibility
    until: Position

    def holds(self, transaction: Transaction) -> bool:
        commit = transaction.commit
        return commit.position <= self.until and self.place.contains(commit.transaction, commit.position)

    def splits(self, transaction: Transaction) -> bool:
        """Whether the refresh contained only some of it: see `SequenceVisibility.splits`."""
        commit = transaction.commit
        return isinstance(self.place, SequenceVisibility) and self.place.splits(commit.transaction, commit.position)

    def document(self) -> JsonText:
        return to_json_text(self)

    @classmethod
    def of(cls, document: JsonText) -> RefreshedSnapshot:
        return parse_json_as(document, cls)


@asynccontextmanager
async def snapshot_after(
    store: MetadataStore, seen: Iterable[Commit], clock: LoopClock
) -> AsyncIterator[tuple[ConsistentRead, RefreshedSnapshot]]:
    """A snapshot that contains everything that the stream has brought already.

    On PostgreSQL a commit reaches the stream a moment before it becomes visible to others (longer, if the writer
    waits for a synchronous standby), so a snapshot may lack a transaction that was delivered. Then we take another.
    """
    waiting = list(seen)
    deadline = clock.monotonic() + _VISIBLE_WITHIN_S
    while True:
        async with store.consistent_read() as read:
            place = read.visibility
            waiting = [commit for commit in waiting if not place.contains(commit.transaction, commit.position)]
            if not waiting:
                yield read, RefreshedSnapshot(_known(place), await store.position())
                return
        if clock.monotonic() > deadline:
            raise Unavailable(f"transaction {waiting[0].transaction} was committed but is still not visible")
        await asyncio.sleep(0.002)


def _known(place: SnapshotVisibility) -> AnySnapshotVisibility:
    assert isinstance(place, (SequenceVisibility, XidVisibility))  # noqa: S101  (all stores' places)
    return place
