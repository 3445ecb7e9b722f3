"""Reading the commit log: entries without a gap, each of which names the transaction before it.

A `Mark` is a place between two entries. An entry follows a mark if it has the next number and names the mark's
transaction as its predecessor. If none does, what comes after the mark is not known to be complete: entries were
removed, or the registry has another history.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec

from registry.errors import RegistryError, SchemaMismatch
from registry.stores.dynamodb.client import DynamoClient, Item
from registry.stores.dynamodb.layout import sort_key
from registry.stores.dynamodb.staging import chunk_key
from registry.stores.dynamodb.state import REGISTRY, VERSION, State
from registry.stores.dynamodb.transaction import LOG, log_key

_PAGE = 200
_CHUNKS_AT_ONCE = 4


class Mark(msgspec.Struct, frozen=True):
    """After the commit with this number, which this transaction made. 0 and an empty name: before the first."""

    sequence: int
    transaction: str


class LogEntry(msgspec.Struct, frozen=True):
    mark: Mark
    previous: str
    time_ms: int
    size_bytes: int
    body: bytes | None  # the changes of a small commit
    chunks: int  # of a large one


class LogPage(msgspec.Struct, frozen=True):
    """``end``: the registry's last commit when the page was read, if that was looked up."""

    entries: list[LogEntry]
    has_more: bool
    end: Mark | None


class LogBroken(RegistryError):
    """The log does not continue after the mark."""


class CommitLog:
    def __init__(self, client: DynamoClient) -> None:
        self._client = client

    async def end(self) -> Mark:
        """Returns the last commit. Raises SchemaMismatch if there is no registry that this code can use."""
        item = await self._client.get(REGISTRY.key)
        if item is None:
            raise SchemaMismatch(f"{self._client.where} holds no registry")
        state = State.of(item)
        if state.version != VERSION:
            raise SchemaMismatch(
                f"{self._client.where} has items of version {state.version}, and this code knows {VERSION}"
            )
        return Mark(state.sequence, state.transaction)

    async def mark_at(self, sequence: int) -> Mark | None:
        """Returns None if that commit is not known any more."""
        if sequence == 0:
            return Mark(0, "")
        item = await self._client.get(log_key(sequence))
        if item is not None:
            return _entry(item).mark
        end = await self.end()
        return end if end.sequence == sequence else None

    async def read(self, after: Mark, *, look: bool = True) -> LogPage:
        """Returns the next entries. ``look``: reads the last commit's number first, and nothing else if it is the mark.

        Raises LogBroken.
        """
        end = None
        if look:
            end = await self.end()
            if end == after:
                return LogPage([], False, end)
            if end.sequence < after.sequence:
                raise LogBroken(f"the last commit was {after.sequence}, and is {end.sequence} now")
            if end.sequence == after.sequence:
                raise LogBroken(f"commit {after.sequence} is another one than was read before")
        items, more = await self._client.query(LOG, low=sort_key(after.sequence + 1), limit=_PAGE)
        entries = [_entry(item) for item in items]
        last = after
        for entry in entries:
            if entry.mark.sequence != last.sequence + 1:
                raise LogBroken(f"commits {last.sequence + 1} to {entry.mark.sequence - 1} are not in the log any more")
            if entry.previous != last.transaction:
                raise LogBroken(f"commit {last.sequence} is another one than was read before")
            last = entry.mark
        if end is not None and not entries:
            raise LogBroken(f"commits {after.sequence + 1} to {end.sequence} are not in the log any more")
        return LogPage(entries, more is not None, end)

    async def chunks(self, entry: LogEntry) -> AsyncIterator[bytes]:
        """Yields the changes of a commit, in parts. Raises LogBroken if they were removed."""
        if entry.body is not None:
            yield entry.body
        for start in range(0, entry.chunks, _CHUNKS_AT_ONCE):
            numbers = range(start, min(start + _CHUNKS_AT_ONCE, entry.chunks))
            keys = [chunk_key(entry.mark.transaction, number) for number in numbers]
            found = await self._client.get_many(keys)
            for key in keys:
                if key not in found:
                    raise LogBroken(f"the rows of commit {entry.mark.sequence} are not in the log any more")
                yield _bytes(found[key].attributes["body"])


def _entry(item: Item) -> LogEntry:
    found: Mapping[str, str | int | bytes] = item.attributes
    body = found.get("body")
    return LogEntry(
        Mark(int(item.key[1].removeprefix("=")), str(found["tx"])),
        previous=str(found.get("previous", "?")),
        time_ms=int(found["time"]),
        size_bytes=len(body) if isinstance(body, bytes) else 0,
        body=body if isinstance(body, bytes) else None,
        chunks=int(found.get("chunks", 0)),
    )


def _bytes(value: str | int | bytes) -> bytes:
    assert isinstance(value, bytes)  # noqa: S101  (as it was written)
    return value
