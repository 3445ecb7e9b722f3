"""A transaction: rows read under one state of the registry, and the changes that are committed if it is still the same.

A commit replaces the state item under the condition that it was not replaced since the transaction read it. So what the
transaction has read is still so, absent rows included, and no row needs a condition of its own.

A commit of more than 98 items is first written as chunks, which no reader looks at. Replacing the state item commits
it, and makes it pending: its changes are then applied, and the next caller applies them if their writer does not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from registry.errors import AlreadyExists, NotFound, Unavailable
from registry.models import Row
from registry.stores.dynamodb.changes import Change, actions_of, decode_changes, encode_changes, separated
from registry.stores.dynamodb.client import MAX_ACTIONS, Action, Attributes, ConditionFailed, DynamoClient
from registry.stores.dynamodb.constraints import check_values, parents
from registry.stores.dynamodb.layout import LAYOUTS, ItemKey, partition_key, sort_key
from registry.stores.dynamodb.reader import ALL, Range, Reader, Value
from registry.stores.dynamodb.staging import Announcement, chunk_key, remove_abandoned, stage
from registry.stores.dynamodb.state import Domain, State

R = TypeVar("R", bound=Row)

LOG = "log"
"""The partition key of the commit log, whose sort keys are commit sequences."""

LOG_KEPT_S = 24 * 3_600
"""How long an entry of the commit log is kept, by DynamoDB's time to live."""

_MAX_LOG_BYTES = 300_000
_MAX_TRANSACTION_BYTES = 3_500_000
_ITEM_OVERHEAD = 300


class Taken(AlreadyExists):
    """A row with the same key, or the same columns of a unique pointer, exists."""

    def __init__(self, kind: type[Row], key: ItemKey) -> None:
        super().__init__(f"{key[0]} {key[1]} exists".replace("\x01", " "))
        self.kind = kind


class Missing(NotFound):
    """A row that another one references does not exist."""

    def __init__(self, kind: type[Row]) -> None:
        super().__init__(f"a row of {kind.table} that another one references does not exist")
        self.kind = kind


class Transaction(Reader):
    """Rows are returned as this transaction left them; limited ranges as the database has them."""

    def __init__(self, client: DynamoClient, domain: Domain, state: State, now: int) -> None:
        super().__init__(client)
        self._domain = domain
        self._state = state
        self._now = now
        self._ids = dict(state.ids)
        self._known: dict[ItemKey, Row | None] = {}
        self._changes: dict[ItemKey, Change] = {}
        self._pointers: dict[ItemKey, ItemKey] = {}  # of changed rows
        self._announcement: Announcement | None = None  # of staged chunks

    @property
    def now(self) -> int:
        return self._now

    def new_id(self, kind: type[Row]) -> int:
        self._ids[kind.table] = self._ids.get(kind.table, 0) + 1
        return self._ids[kind.table]

    def keep_ids_above(self, kind: type[Row], used: int) -> None:
        self._ids[kind.table] = max(self._ids.get(kind.table, 0), used)

    def insert(self, row: R) -> R:
        self._change(row, None, row)
        return row

    def update(self, before: Row, after: R) -> R:
        """``before``: as it was read."""
        self._change(after, before, after)
        return after

    def replace(self, before: R, **values: object) -> R:
        return self.update(before, msgspec.structs.replace(before, **values))

    def delete(self, row: Row) -> None:
        self._change(row, row, None)

    def _change(self, row: Row, before: Row | None, after: Row | None) -> None:
        if after is not None:
            check_values(after)
        key = LAYOUTS[type(row)].key(row)
        earlier = self._changes.get(key)
        first = before if earlier is None else earlier.before
        change = self._changes[key] = Change(type(row), first, after)
        self._pointers |= dict.fromkeys(change.pointers(after), key)

    async def _follow(self, pointers: Sequence[ItemKey]) -> dict[ItemKey, ItemKey]:
        own = {key: self._pointers[key] for key in pointers if key in self._pointers}
        return own | await super()._follow([key for key in pointers if key not in own])

    async def rows(
        self,
        kind: type[R],
        *scope: Value,
        within: Range = ALL,
        where: Callable[[R], bool] | None = None,
        limit: int | None = None,
    ) -> list[R]:
        found = await super().rows(kind, *scope, within=within, where=where, limit=limit)
        own = {key: change for key, change in self._changes.items() if change.kind is kind}
        if not own or within != ALL or limit is not None:
            return found
        layout = LAYOUTS[kind]
        rows = {key: row for row in found if (key := layout.key(row)) not in own}
        partition = partition_key(kind.table, *scope)
        for key in own:
            row = self._current(kind, key)
            if row is not None and key[0] == partition and (where is None or where(row)):
                rows[key] = row
        return [rows[key] for key in sorted(rows)]

    async def _load(self, kind: type[R], keys: Sequence[ItemKey]) -> list[R | None]:
        unknown = [key for key in keys if key not in self._known and key not in self._changes]
        self._known |= dict(zip(unknown, await super()._load(kind, unknown), strict=True))
        return [self._current(kind, key) for key in keys]

    def _current(self, kind: type[R], key: ItemKey) -> R | None:
        change = self._changes.get(key)
        found = self._known.get(key) if change is None else change.after
        assert found is None or isinstance(found, kind)  # noqa: S101  (keys name their kind)
        return found

    # -- commit ------------------------------------------------------------------------------------------

    async def commit(self) -> bool:
        """Returns False, and has written nothing, if another transaction was committed meanwhile.

        Raises `Taken` or `Missing` if a constraint is violated.
        """
        changes = separated(change for change in self._changes.values() if change.before != change.after)
        if not changes and self._ids == self._state.ids:
            return await self.is_current()
        await self._require_unique(changes)
        await self._require_parents(changes)
        name = uuid.uuid4().hex
        following = msgspec.structs.replace(
            self._state, sequence=self._state.sequence + 1, ids=self._ids, time=self._now, transaction=name
        )
        actions, chunks = actions_of(changes), encode_changes(changes)
        if len(actions) + 2 > MAX_ACTIONS or len(chunks[0]) > _MAX_LOG_BYTES or _size(actions) > _MAX_TRANSACTION_BYTES:
            return await self.commit_staged(following, chunks)
        entry = [self._log_entry(following, {"body": chunks[0]})] if self._domain.logged else []
        replaced = self._state.replaced_by(self._domain, following)
        return await self._committed([replaced, *entry, *actions], following)

    async def commit_staged(self, following: State, chunks: Sequence[bytes], *, staged: int = 0) -> bool:
        """Commits changes of any number. ``staged`` chunks were written before, under the transaction's name."""
        name = following.transaction
        await self.stage(name, chunks, first=staged)
        count = staged + len(chunks)
        pending = msgspec.structs.replace(following, pending=name, chunks=count)
        entry = [self._log_entry(following, {"chunks": count})] if self._domain.logged else []
        announced = [] if self._announcement is None else [self._announcement]
        actions = [self._state.replaced_by(self._domain, pending), *entry, *(one.deletion() for one in announced)]
        if not await self._committed(actions, following):
            written = [chunk_key(name, number) for number in range(count)]
            await self._client.delete_many([*written, *(one.key for one in announced)])
            return False
        await apply(self._client, self._domain, pending)
        await remove_abandoned(self._client)
        return True

    async def stage(self, name: str, chunks: Sequence[bytes], *, first: int = 0) -> None:
        """Writes chunks that are not read before the commit. All are of one transaction."""
        if self._announcement is None and chunks:
            self._announcement = Announcement(name)
            await self._announcement.put(self._client)
        await stage(self._client, name, chunks, first)

    @property
    def lock(self) -> str | None:
        return self._state.lock

    def following(self, name: str | None = None) -> State:
        """The state after a commit of staged chunks, which also releases the lock."""
        return msgspec.structs.replace(
            self._state,
            sequence=self._state.sequence + 1,
            ids=self._ids,
            time=self._now,
            transaction=name or uuid.uuid4().hex,
            lock=None,
        )

    async def set_lock(self, lock: str | None) -> bool:
        """Takes, renews or releases the lock of a bulk load."""
        held = msgspec.structs.replace(self._state, lock=lock)
        try:
            await self._client.write_transaction([self._state.replaced_by(self._domain, held)])
        except ConditionFailed:
            return False
        self._state = held
        return True

    async def is_current(self) -> bool:
        item = await self._client.get(self._domain.key)
        if item is None:
            return False
        found = State.of(item)
        return (found.sequence, found.pending) == (self._state.sequence, self._state.pending)

    async def _committed(self, actions: Sequence[Action], following: State) -> bool:
        try:
            await self._client.write_transaction(actions)
        except ConditionFailed:
            return await self._was_committed(following)
        return True

    async def _was_committed(self, following: State) -> bool:
        """A repeated request fails if its first attempt was committed, and a restarted server knows no tokens."""
        if self._domain.logged:
            entry = await self._client.get(log_key(following.sequence))
            return entry is not None and entry.attributes["tx"] == following.transaction
        item = await self._client.get(self._domain.key)
        return item is not None and item.attributes["tx"] == following.transaction

    def _log_entry(self, following: State, content: Attributes) -> Action:
        names = {"tx": following.transaction, "previous": self._state.transaction}
        attributes = {**names, "time": self._now, "expires": _expiry(), **content}
        return Action("put", log_key(following.sequence), attributes)

    async def _require_unique(self, changes: Sequence[Change]) -> None:
        freed = {key for change in changes for key in change.pointers(change.before, unique=True)}
        wanted: dict[ItemKey, type[Row]] = {}
        for change in changes:
            has_own_id = LAYOUTS[change.kind].sort == ("id",)
            if change.before is None and not has_own_id and self._known.get(change.key, change) is not None:
                wanted[change.key] = change.kind
            new = change.pointers(change.after, unique=True) - change.pointers(change.before, unique=True)
            for key in new:
                if key in wanted:
                    raise Taken(change.kind, key)
                wanted[key] = change.kind
        for key in await self._client.get_many([key for key in wanted if key not in freed]) if wanted else ():
            raise Taken(wanted[key], key)

    async def _require_parents(self, changes: Sequence[Change]) -> None:
        wanted: dict[ItemKey, type[Row]] = {}
        for change in changes:
            if change.after is not None:
                known = set() if change.before is None else {key for _, key in parents(change.before)}
                wanted |= {key: kind for kind, key in parents(change.after) if key not in known}
        unknown = []
        for key, kind in wanted.items():
            if key in self._changes or key in self._known:
                if self._current(kind, key) is None:
                    raise Missing(kind)
            else:
                unknown.append(key)
        if unknown:
            found = await self._client.get_many(unknown)
            for key in unknown:
                if key not in found:
                    raise Missing(wanted[key])


async def apply(client: DynamoClient, domain: Domain, state: State) -> None:
    """Applies the pending transaction. Several callers may do so together: each step requires that it is pending."""
    assert state.pending is not None  # noqa: S101  (the caller has looked)
    try:
        for number in range(state.chunks):
            chunk = await client.get(chunk_key(state.pending, number))
            if chunk is None:
                item = await client.get(domain.key)
                if item is None or State.of(item).pending == state.pending:
                    raise Unavailable(
                        f"{client.where}: chunk {number} of the pending commit is missing: restore a backup"
                    )
                return
            body = chunk.attributes["body"]
            assert isinstance(body, bytes)  # noqa: S101  (as it was written)
            for actions in _steps(actions_of(decode_changes(body))):
                await client.write_transaction([state.still_applying(domain), *actions])
        applied = msgspec.structs.replace(state, pending=None, chunks=0)
        await client.write_transaction([state.replaced_by(domain, applied)])
        await client.expire_many([chunk_key(state.pending, number) for number in range(state.chunks)], _expiry())
    except ConditionFailed:
        return  # another caller has applied it


def _steps(actions: Sequence[Action]) -> list[list[Action]]:
    steps: list[list[Action]] = [[]]
    size = 0
    for action in actions:
        weight = _size([action])
        if len(steps[-1]) + 1 == MAX_ACTIONS or size + weight > _MAX_TRANSACTION_BYTES:
            steps.append([])
            size = 0
        steps[-1].append(action)
        size += weight
    return [step for step in steps if step]


def _size(actions: Sequence[Action]) -> int:
    return sum(
        _ITEM_OVERHEAD + sum(len(value) for value in action.attributes.values() if isinstance(value, str | bytes))
        for action in actions
    )


def log_key(sequence: int) -> ItemKey:
    return LOG, sort_key(sequence)


def _expiry() -> int:
    """By this machine's clock, because DynamoDB compares it with its own."""
    return int(time.time()) + LOG_KEPT_S
