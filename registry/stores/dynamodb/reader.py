"""Reading rows: by key, by pointer, and ranges of a partition key in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from registry.models import Row
from registry.stores.dynamodb.changes import decode_row, pointed_key
from registry.stores.dynamodb.client import DynamoClient, Item
from registry.stores.dynamodb.layout import LAYOUTS, ItemKey, partition_key, sort_key, sort_prefix

R = TypeVar("R", bound=Row)
Value: TypeAlias = str | int

_FIRST, _LAST = "\x01", "\U0010ffff"
"""The lowest character of keys, and one above all of them."""


class Range(msgspec.Struct, frozen=True):
    """Sort keys, in order or backwards. Bounds are values of the sort columns; ``prefix`` of the first of them."""

    prefix: tuple[Value, ...] = ()
    after: tuple[Value, ...] | None = None  # excluded
    start: tuple[Value, ...] | None = None
    stop: tuple[Value, ...] | None = None  # included
    backwards: bool = False
    page: int | None = None  # items of one request

    def bounds(self) -> tuple[str | None, str | None]:
        low = high = None
        if self.prefix:
            low, high = sort_prefix(*self.prefix), sort_prefix(*self.prefix) + _LAST
        if self.start is not None:
            low = sort_key(*self.start)
        if self.after is not None:
            low = sort_key(*self.after) + _FIRST
        if self.stop is not None:
            high = sort_key(*self.stop)
        return low, high


ALL = Range()


class Reader:
    """Reads are strongly consistent, each for itself. ``requests`` counts them."""

    def __init__(self, client: DynamoClient) -> None:
        self._client = client
        self.requests = 0

    async def get(self, kind: type[R], *values: Value) -> R | None:
        return (await self._load(kind, [LAYOUTS[kind].key_of(*values)]))[0]

    async def get_many(self, kind: type[R], keys: Iterable[tuple[Value, ...]]) -> dict[tuple[Value, ...], R]:
        """Returns the rows that exist, by the given keys."""
        wanted = list(dict.fromkeys(keys))
        rows = await self._load(kind, [LAYOUTS[kind].key_of(*key) for key in wanted])
        return {key: row for key, row in zip(wanted, rows, strict=True) if row is not None}

    async def find(self, kind: type[R], pointer: str, *values: Value) -> R | None:
        """Returns the row to which the pointer with these values leads."""
        return (await self.find_many(kind, pointer, [values])).get(values)

    async def find_many(
        self, kind: type[R], pointer: str, keys: Iterable[tuple[Value, ...]]
    ) -> dict[tuple[Value, ...], R]:
        one = LAYOUTS[kind].pointer(pointer)
        split = len(one.scope)
        wanted = {
            key: (partition_key(f"{kind.table}.{pointer}", *key[:split]), sort_key(*key[split:]))
            for key in dict.fromkeys(keys)
        }
        if not wanted:
            return {}
        led = await self._follow(list(wanted.values()))
        rows = await self._load(kind, [led[place] for place in wanted.values() if place in led])
        found = zip((key for key, place in wanted.items() if place in led), rows, strict=True)
        return {key: row for key, row in found if row is not None and one.key(row) == wanted[key]}

    async def _follow(self, pointers: Sequence[ItemKey]) -> dict[ItemKey, ItemKey]:
        """Returns the keys of the rows to which these pointers lead."""
        return {key: pointed_key(item.attributes) for key, item in (await self._items(pointers)).items()}

    async def rows(
        self,
        kind: type[R],
        *scope: Value,
        within: Range = ALL,
        where: Callable[[R], bool] | None = None,
        limit: int | None = None,
    ) -> list[R]:
        """Returns the rows of a scope in the order of their sort columns, at most ``limit`` that fulfil ``where``."""
        found: list[R] = []
        if limit is not None and within.page is None and where is None:
            within = msgspec.structs.replace(within, page=limit)
        async for page in self.pages(kind, *scope, within=within):
            found += page if where is None else [row for row in page if where(row)]
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    async def pages(self, kind: type[R], *scope: Value, within: Range = ALL) -> AsyncIterator[list[R]]:
        async for items in self._queried(partition_key(kind.table, *scope), within):
            yield [decode_row(kind, item.attributes) for item in items]

    async def pointed(
        self,
        kind: type[R],
        pointer: str,
        *scope: Value,
        within: Range = ALL,
        where: Callable[[R], bool] | None = None,
        limit: int | None = None,
    ) -> list[R]:
        """Returns rows in the order of a pointer's sort columns."""
        found: list[R] = []
        if limit is not None and within.page is None:
            within = msgspec.structs.replace(within, page=limit)
        async for page in self.pointed_pages(kind, pointer, *scope, within=within):
            found += page if where is None else [row for row in page if where(row)]
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    async def pointed_pages(
        self, kind: type[R], pointer: str, *scope: Value, within: Range = ALL
    ) -> AsyncIterator[list[R]]:
        async for items in self._queried(partition_key(f"{kind.table}.{pointer}", *scope), within):
            loaded = await self._load(kind, [pointed_key(item.attributes) for item in items])
            yield [row for row in loaded if row is not None]

    async def _queried(self, partition: str, within: Range) -> AsyncIterator[list[Item]]:
        low, high = within.bounds()
        after: str | None = None
        if low is not None and high is not None and low > high:
            return
        while True:
            self.requests += 1
            items, after = await self._client.query(
                partition, low=low, high=high, backwards=within.backwards, limit=within.page, after=after
            )
            if items:
                yield items
            if after is None:
                return

    async def _load(self, kind: type[R], keys: Sequence[ItemKey]) -> list[R | None]:
        items = await self._items(keys)
        return [decode_row(kind, items[key].attributes) if key in items else None for key in keys]

    async def _items(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Item]:
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        # Items of one request are read one after the other, so they count as requests of their own.
        self.requests += len(wanted)
        return await self._client.get_many(wanted)
