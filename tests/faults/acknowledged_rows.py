"""The rows that a table must have: what its writers were told, and what they could not know."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from tests.e2e.engines import Rows
from tests.e2e.expected_rows import amount_of


class UnknownCommit(msgspec.Struct, frozen=True):
    """A commit without a response: all of it happened, or nothing."""

    added: frozenset[int]
    removed: frozenset[int]

    def outcome(self, found: Collection[int]) -> bool | None:
        """Returns whether it happened; None if it happened in part."""
        if self.added <= set(found) and self.removed.isdisjoint(found):
            return True
        return False if self.added.isdisjoint(found) and self.removed <= set(found) else None


class AcknowledgedRows:
    """Row ids of one table. Each belongs to one writer, and only that one removes it again.

    A commit without a response takes its rows out of use: whether they are there is seen by reading.
    """

    def __init__(self) -> None:
        self.live: dict[int, str] = {}  # -> its writer
        self.unknown: list[UnknownCommit] = []
        self._owners: dict[int, str] = {}
        self._users = 0
        self._changed = asyncio.Condition()

    def of(self, writer: str) -> list[int]:
        return [number for number, owner in self.live.items() if owner == writer]

    def acknowledge(self, writer: str, added: Iterable[int] = (), removed: Iterable[int] = ()) -> None:
        for number in removed:
            del self.live[number]
        self.live.update(dict.fromkeys(added, writer))
        self._owners.update(self.live)

    def doubt(self, writer: str, added: Iterable[int] = (), removed: Iterable[int] = ()) -> None:
        commit = UnknownCommit(frozenset(added), frozenset(removed))
        self._owners.update(dict.fromkeys(commit.added, writer))
        for number in commit.removed:
            del self.live[number]
        self.unknown.append(commit)

    def replace(self, found: Iterable[int]) -> None:
        """After a rollback."""
        assert not self.unknown
        self.live = {number: self._owners[number] for number in found}

    def resolve(self, found: Collection[int]) -> None:
        """`found`: rows that were read while nothing was being written."""
        for commit in self.unknown:
            happened = commit.outcome(found)
            assert happened is not None, f"a commit happened in part: {commit}"
            self.live.update({number: self._owners[number] for number in (commit.removed, commit.added)[happened]})
        self.unknown.clear()

    def difference(self, rows: Rows) -> str | None:
        """Returns what is wrong with the rows that an engine reads: each id and amount once, and nothing else."""
        counts = Counter(number for number, _ in rows)
        found = set(counts)
        doubtful = {number for commit in self.unknown for number in commit.added | commit.removed}
        wrong: dict[str, Sequence[object]] = {
            "twice": sorted(number for number, count in counts.items() if count > 1),
            "missing": sorted(set(self.live) - found),
            "not expected": sorted(found - set(self.live) - doubtful),
            "in part": [commit for commit in self.unknown if commit.outcome(found) is None],
            "amounts": [number for number, amount in rows if amount != amount_of(number)],
        }
        said = [f"{len(rows)} {name}: {rows[:8]}" for name, rows in wrong.items() if rows]
        return f"{len(rows)} rows of {len(self.live)}; {'; '.join(said)}" if said else None

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Any number may write at the same time."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._users >= 0)
            self._users += 1
        try:
            yield
        finally:
            async with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Waits for the writers, and keeps them waiting."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._users == 0)
            self._users = -1
        try:
            yield
        finally:
            async with self._changed:
                self._users = 0
                self._changed.notify_all()
