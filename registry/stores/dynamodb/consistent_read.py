"""Reading the whole registry as of one commit, without holding anything open.

Rows are read as they are now, and what was committed since the snapshot's sequence is undone: the commit log has the
row before each change. So a row that the log does not name is as it was, and one that it names is what its first entry
says. Writers are not blocked, and a snapshot lives as long as the log's entries.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from registry import validation
from registry.contract import PAGE
from registry.errors import Unavailable
from registry.models import ConsumerGroup, LakeTable, Row, Topic
from registry.position import Position, SequenceVisibility
from registry.stores.dynamodb.base import DynamoBase
from registry.stores.dynamodb.changes import Change, decode_changes
from registry.stores.dynamodb.client import DynamoClient
from registry.stores.dynamodb.commit_log import CommitLog, LogBroken, Mark
from registry.stores.dynamodb.layout import LAYOUTS, ItemKey
from registry.stores.dynamodb.reader import Range, Reader
from registry.stores.dynamodb.state import REGISTRY, State

R = TypeVar("R", bound=Row)

_SCOPES: dict[tuple[str, ...], type[Row]] = {
    ("topic",): Topic, ("group_id",): ConsumerGroup, ("table_id",): LakeTable,
}  # fmt: skip
_SMALLEST_PAGE = 50

RowKey: TypeAlias = tuple[Any, ...]
"""The values of a row's primary key."""


class DynamoConsistentRead:
    def __init__(self, client: DynamoClient, state: State) -> None:
        self._client = client
        self._sequence = state.sequence
        self._log = CommitLog(client)
        self._undone_to = Mark(state.sequence, state.transaction)
        self._before: dict[ItemKey, Change] = {}  # the first change of each row since the snapshot

    @property
    def visibility(self) -> SequenceVisibility:
        return SequenceVisibility(Position(self._sequence))

    async def count(self, kind: type[Row]) -> int:
        total = 0
        async for rows in self.rows(kind):
            total += len(rows)
        return total

    async def rows(self, kind: type[R], *, page: int = PAGE, table_id: int | None = None) -> AsyncIterator[list[R]]:
        validation.integer("page", page, 1)
        ready: list[R] = []
        after: RowKey | None = None
        async for current, is_last in self._current(kind, page, table_id):
            await self._follow_log()
            until = None if is_last else _key(current[-1])
            ready += self._undone(kind, current, after, until, table_id)
            after = until
            while len(ready) >= page:
                yield ready[:page]
                ready = ready[page:]
        if ready:
            yield ready

    def _undone(
        self, kind: type[R], current: list[R], after: RowKey | None, until: RowKey | None, table_id: int | None
    ) -> list[R]:
        """Returns the rows with keys above ``after`` and up to ``until``, as they were."""
        layout = LAYOUTS[kind]
        rows = [row for row in current if layout.key(row) not in self._before]
        for change in self._before.values():
            row = change.before
            if (
                isinstance(row, kind)
                and (after is None or _key(row) > after)
                and (until is None or _key(row) <= until)
                and (table_id is None or getattr(row, "table_id") == table_id)  # noqa: B009  (not every kind has one)
            ):
                rows.append(row)
        return sorted(rows, key=_key)

    async def _follow_log(self) -> None:
        """Learns what was changed since the last call."""
        try:
            has_more = True
            while has_more:
                page = await self._log.read(self._undone_to, look=False)
                for entry in page.entries:
                    async for chunk in self._log.chunks(entry):
                        for change in decode_changes(chunk):
                            self._before.setdefault(change.key, change)
                    self._undone_to = entry.mark
                has_more = page.has_more
        except LogBroken as error:
            where = self._client.where
            raise Unavailable(f"{where}: the snapshot is older than the commit log: begin again") from error

    async def _current(self, kind: type[R], page: int, table_id: int | None) -> AsyncIterator[tuple[list[R], bool]]:
        """Yields rows as they are now, in key order and not empty, and at last an empty list."""
        layout, reader = LAYOUTS[kind], Reader(self._client)
        if not layout.scope:
            async for rows in reader.pages(kind, within=Range(page=page)):
                yield rows, False
        elif layout.pointers and layout.pointers[0].name == "id" and layout.scope != ("table_id",):
            async for rows in reader.pointed_pages(kind, "id", within=Range(page=page)):
                if rows:
                    yield rows, False
        else:
            scopes: list[Any] = [table_id] if table_id is not None else await self._scopes(layout.scope)
            if kind.key == ("id",):
                async for rows in self._merged(kind, scopes, page):
                    yield rows, False
            else:
                for scope in scopes:
                    async for rows in reader.pages(kind, scope, within=Range(page=page)):
                        yield rows, False
        yield [], True

    async def _scopes(self, columns: tuple[str, ...]) -> list[Any]:
        parent = _SCOPES[columns]
        return [_key(row)[0] async for rows in self.rows(parent) for row in rows]

    async def _merged(self, kind: type[R], scopes: list[Any], page: int) -> AsyncIterator[list[R]]:
        """Merges the rows of many tables by id. Memory is bounded by a small page per table."""
        each = max(_SMALLEST_PAGE, page // max(len(scopes), 1))
        reader = Reader(self._client)
        streams = [reader.pages(kind, scope, within=Range(page=each)) for scope in scopes]
        heap: list[tuple[RowKey, int, list[R], int]] = []
        for number, stream in enumerate(streams):
            await _refill(heap, stream, number)
        merged: list[R] = []
        while heap:
            _, number, rows, place = heapq.heappop(heap)
            merged.append(rows[place])
            if place + 1 < len(rows):
                heapq.heappush(heap, (_key(rows[place + 1]), number, rows, place + 1))
            else:
                await _refill(heap, streams[number], number)
            if len(merged) == page:
                yield merged
                merged = []
        if merged:
            yield merged


async def _refill(heap: list[tuple[RowKey, int, list[R], int]], stream: AsyncIterator[list[R]], number: int) -> None:
    rows = await anext(stream, None)
    if rows:
        heapq.heappush(heap, (_key(rows[0]), number, rows, 0))


def _key(row: Row) -> RowKey:
    return tuple(getattr(row, name) for name in row.key)


class DynamoReads(DynamoBase):
    @asynccontextmanager
    async def consistent_read(self, tables: Iterable[str] = ()) -> AsyncIterator[DynamoConsistentRead]:
        state = await self._settled(REGISTRY)
        yield DynamoConsistentRead(self._client, state)

    async def position(self) -> Position:
        return Position((await self._settled(REGISTRY)).sequence)
