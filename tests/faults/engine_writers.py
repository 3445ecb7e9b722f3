"""Writers of tables that several engines share. Each keeps account of its rows in `AcknowledgedRows`."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from astha.errors import AsthaError
from components.lib.lake.iceberg import IcebergTables
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager import StorageManager
from components.snapshotter.rollback import Rollback
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.models import LakeTable
from tests.e2e.engines import Rows
from tests.faults.acknowledged_rows import AcknowledgedRows
from tests.faults.engine_clients import MaybeCommitted, NotCommitted, PyIcebergClient, ids_of, rows_of

T = TypeVar("T")

_LARGEST = 40


class EngineClient(Protocol):
    """All methods raise `NotCommitted` or `MaybeCommitted`."""

    def append(self, table: str, added: Sequence[int]) -> None: ...
    def delete(self, table: str, removed: Sequence[int]) -> None: ...
    def overwrite(self, table: str, added: Sequence[int], removed: Sequence[int]) -> None: ...
    def read(self, table: str) -> Rows: ...


class Account:
    """The tables, their rows, and what was done."""

    def __init__(self, tables: Mapping[str, LakeTable]) -> None:
        self.tables = tables
        self.rows = {name: AcknowledgedRows() for name in tables}
        self.done: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}  # of the last refusal of each kind
        self._commits: Counter[str] = Counter()
        self._numbers = itertools.count()

    def numbers(self, count: int) -> list[int]:
        """Returns numbers that were never returned before."""
        return list(itertools.islice(self._numbers, count))

    def count_commit(self, engine: str) -> None:
        self._commits[engine] += 1

    def commits_of(self, engine: str) -> int:
        """Returns those of all engines whose name begins so."""
        return sum(count for name, count in self._commits.items() if name.startswith(engine))


class Writer:
    """Performs one random operation after another."""

    def __init__(self, name: str, account: Account, seed: str, pace_s: float = 0.1) -> None:
        self.name = name
        self._account = account
        self._random = random.Random(f"{seed} {name}")
        self._pace_s = pace_s

    def actions(self) -> list[tuple[int, Callable[[str], Awaitable[bool]]]]:
        raise NotImplementedError

    async def run(self, until: asyncio.Event) -> None:
        actions = self.actions()
        weights = [weight for weight, _ in actions]
        while not until.is_set():
            (chosen,) = self._random.choices([action for _, action in actions], weights)
            table = self._random.choice(list(self._account.tables))
            await self._attempt(chosen, table)
            await asyncio.sleep(self._random.random() * 2 * self._pace_s)

    async def _attempt(self, action: Callable[[str], Awaitable[bool]], table: str) -> None:
        what = f"{self.name} {action.__name__.strip('_')}"
        try:
            if await action(table):
                self._account.done[what] += 1
        except MaybeCommitted as reason:
            self._note(f"{what} unknown", reason)
        except (NotCommitted, AsthaError, RegistryError) as reason:
            self._note(f"{what} refused", reason)

    def _note(self, what: str, reason: Exception) -> None:
        self._account.done[what] += 1
        self._account.reasons[what] = str(reason)[:200]


class InsertWriter(Writer):
    """Our own storage manager."""

    def __init__(self, name: str, account: Account, seed: str, manager: StorageManager) -> None:
        super().__init__(name, account, seed)
        self._manager = manager

    def actions(self) -> list[tuple[int, Callable[[str], Awaitable[bool]]]]:
        return [(1, self._insert)]

    async def _insert(self, table: str) -> bool:
        rows = self._account.rows[table]
        numbers = self._account.numbers(self._random.randint(1, _LARGEST))
        async with rows.writing():
            inserted = await self._manager.insert(
                self._account.tables[table].id, rows_of(numbers).to_pylist(), sync=self._random.random() < 0.5
            )
            await inserted.registered
            rows.acknowledge(self.name, numbers)
        return True


class EngineWriter(Writer):
    """Another engine, by way of the catalog."""

    def __init__(self, name: str, account: Account, seed: str, client: EngineClient) -> None:
        super().__init__(name, account, seed)
        self._client = client

    def actions(self) -> list[tuple[int, Callable[[str], Awaitable[bool]]]]:
        return [(5, self._append), (3, self._delete), (3, self._overwrite)]

    async def _append(self, table: str) -> bool:
        added = self._account.numbers(self._random.randint(1, _LARGEST))
        async with self._account.rows[table].writing():
            return await self._commit(table, added, [], lambda: self._client.append(table, added))

    async def _delete(self, table: str) -> bool:
        async with self._account.rows[table].writing():
            removed = await self._some(table)
            if not removed:
                return False
            return await self._commit(table, [], removed, lambda: self._client.delete(table, removed))

    async def _overwrite(self, table: str) -> bool:
        async with self._account.rows[table].writing():
            added, removed = self._account.numbers(self._random.randint(1, _LARGEST)), await self._some(table)
            if not removed:
                return False
            return await self._commit(table, added, removed, lambda: self._client.overwrite(table, added, removed))

    async def _commit(self, table: str, added: list[int], removed: list[int], call: Callable[[], None]) -> bool:
        rows = self._account.rows[table]
        try:
            await asyncio.to_thread(call)
        except MaybeCommitted:
            rows.doubt(self.name, added, removed)
            raise
        rows.acknowledge(self.name, added, removed)
        self._account.count_commit(self.name)
        return True

    async def _some(self, table: str) -> list[int]:
        """Returns own rows that the engine sees: those of a registry's rollback come to Iceberg later."""
        visible = {number for number, _ in await reading(lambda: self._client.read(table))}
        own = [number for number in self._account.rows[table].of(self.name) if number in visible]
        return self._random.sample(own, min(len(own), self._random.randint(1, _LARGEST)))


class RollbackWriter(Writer):
    """Rolls tables back while no other writer changes them; compaction, the updater and the kills go on."""

    def __init__(
        self, account: Account, seed: str, client: PyIcebergClient, store: MetadataStore, tables: IcebergTables,
        objects: Objects,
    ) -> None:  # fmt: skip
        super().__init__("rollback", account, seed, pace_s=2.0)
        self._client = client
        self._tables = tables
        self._rollback = Rollback(store, tables, _threaded, objects)

    def actions(self) -> list[tuple[int, Callable[[str], Awaitable[bool]]]]:
        return [(1, self._by_registry), (1, self._by_engine)]

    async def _by_registry(self, table: str) -> bool:
        rows, found = self._account.rows[table], self._account.tables[table]
        async with rows.alone():
            await self._resolve(rows, table)
            loaded = await asyncio.to_thread(self._tables.load, found)
            if loaded is None or not loaded.metadata.snapshots:
                return False
            chosen = self._random.choice(loaded.metadata.snapshots[-6:]).snapshot_id
            wanted = await reading(lambda: ids_of(loaded, chosen))
            await self._rollback.roll_back(found, str(chosen))
            rows.replace(wanted)
        return True

    async def _by_engine(self, table: str) -> bool:
        rows, share = self._account.rows[table], self._random.random()
        async with rows.alone():
            await self._resolve(rows, table)
            await self._go_back(rows, table, share)
        return True

    async def _resolve(self, rows: AcknowledgedRows, table: str) -> None:
        """A commit without a response may still be under way: one more commit makes all earlier ones fail."""
        if rows.unknown:
            added = self._account.numbers(1)
            await asyncio.to_thread(self._client.append, table, added)
            rows.acknowledge(self.name, added)
            rows.resolve(await reading(lambda: [number for number, _ in self._client.read(table)]))

    async def _go_back(self, rows: AcknowledgedRows, table: str, share: float) -> None:
        """Rows that are not in Iceberg yet, in either direction, are not affected."""
        loaded = await reading(lambda: self._client.load(table))
        snapshots = [entry.snapshot_id for entry in loaded.history()]
        if not snapshots:
            raise NotCommitted("nothing to roll back to")
        chosen = snapshots[int(share * len(snapshots))]
        before = set(await reading(partial(ids_of, loaded)))
        after = set(await reading(partial(ids_of, loaded, chosen)))
        added, removed = after - before, (before - after) & set(rows.live)
        try:
            await asyncio.to_thread(self._client.roll_back, loaded, chosen)
        except MaybeCommitted:
            rows.doubt(self.name, added, removed)
            raise
        rows.replace((set(rows.live) - removed) | added)


async def reading(read: Callable[[], T]) -> T:
    """A catalog that is down, or a file that was deleted with its snapshot, ends the attempt."""
    try:
        return await asyncio.to_thread(read)
    except Exception as error:
        raise NotCommitted(repr(error)) from error


async def _threaded(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)
