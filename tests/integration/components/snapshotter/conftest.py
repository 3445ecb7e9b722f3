"""A registry, a warehouse, an updater and a snapshotter, to which the test delivers events by hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pydantic import SecretStr
from pyiceberg.table import Table

from astha.clock import SystemLoopClock
from astha.events import Commit, Event, Operation
from astha.subscribers import ComponentContext, LakeSettings
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import Stamp, live_digest
from components.snapshotter.settings import SnapshotterSettings
from components.snapshotter.subscriber import Snapshotter
from registry.contract import MetadataStore
from registry.inputs import FileDraft
from registry.json_text import JsonText
from registry.models import LakeTable, LedgerEntry, Row, TableFile, TableMetadata, TableSnapshot
from registry.position import XidVisibility
from tests.doubles.clock import ManualClock
from tests.fixtures.stores import OpenStore
from tests.lake import iceberg_tables
from tests.parquet_files import PLAIN, row, write_file
from tests.waiting import eventually


class WaitingClock(SystemLoopClock):
    """The wall clock is the test's; sleeping is real."""

    def __init__(self, clock: ManualClock) -> None:
        self._manual = clock

    def now_ms(self) -> int:
        return self._manual.now_ms()


class Lake:
    def __init__(self, url: str, store: MetadataStore, warehouse: Path, clock: ManualClock) -> None:
        self.url, self.store, self.warehouse, self.clock = url, store, warehouse, clock
        self.settings = LakeSettings(warehouse=str(warehouse))
        self.context = ComponentContext(store, WaitingClock(clock), SecretStr(url), self.settings)
        self.tables = iceberg_tables(url, self.settings)
        self.updater = IcebergUpdater(UpdaterSettings(max_snapshots=3), self.context)
        self.snapshotter = self.new_snapshotter()
        self.for_updater: list[list[Event[Row]]] = []
        self.for_snapshotter: list[list[Event[Row]]] = []
        self._known: dict[int, TableSnapshot] = {}
        self._names = itertools.count()

    def new_snapshotter(self, **settings: Any) -> Snapshotter:
        return Snapshotter(SnapshotterSettings.model_validate({"request_timeout_s": 20.0, **settings}), self.context)

    async def restart(self, **settings: Any) -> None:
        """Like a restart after kill -9: background work is lost."""
        await self.snapshotter.stop()
        self.snapshotter = self.new_snapshotter(**settings)
        self.for_snapshotter = []
        await self.start()

    async def start(self) -> None:
        """Starts and refreshes it, as the daemon does."""
        await self.snapshotter.start()
        async with self.store.consistent_read() as snapshot:
            await self.snapshotter.on_refresh(snapshot)

    async def create(self, name: str = "orders", properties: dict[str, str] | None = None) -> LakeTable:
        location = (self.warehouse / name).resolve().as_uri()
        table = await self.store.create_table("shop", name, location, PLAIN.draft(properties=properties))
        metadata = await self.store.get_table_metadata(table.id)
        assert metadata is not None
        await self.happened((Operation.INSERT, metadata))
        return table

    async def insert(self, table: LakeTable, *ids: int) -> list[TableFile]:
        drafts = self._written(table, ids)
        files = await self.store.add_files(table.id, drafts)
        await self.happened(*((Operation.INSERT, file) for file in files))
        return files

    def _written(self, table: LakeTable, ids: Sequence[int]) -> list[FileDraft]:
        """Writes a file under a name that is never reused."""
        directory = self.warehouse / table.name / "data"
        return [write_file(directory, [row(number) for number in ids], name=f"{next(self._names):05}.parquet")]

    async def remove(self, table: LakeTable, files: Sequence[TableFile]) -> None:
        await self.store.remove_files(table.id, files, reason="test")
        await self.happened(*((Operation.DELETE, file) for file in files))

    async def compact(self, table: LakeTable, old: Sequence[TableFile], *ids: int) -> list[TableFile]:
        drafts = self._written(table, ids)
        files = await self.store.swap_files(table.id, old, drafts, operation_id="swap")
        await self.happened(*((Operation.INSERT, file) for file in files), *((Operation.DELETE, file) for file in old))
        return files

    async def drop(self, table: LakeTable, *, purge: bool) -> None:
        files = [file async for file in self.store.stream_files(table.id)]
        versions = await self.store.list_table_metadata(table.id)
        rows = await self.store.list_snapshots(table.id)
        await self.store.drop_table(table.id, purge=purge)
        await self.happened(*((Operation.DELETE, gone) for gone in (*files, *versions, *rows)))

    async def request(self, table: LakeTable, tag: str | None = None, **rest: Any) -> TableSnapshot:
        asked = await self.store.request_snapshot(table.id, tag=tag, **rest)
        await self.see_rows(table)
        return asked

    async def see_rows(self, table: LakeTable) -> None:
        """Turns changes of the table's snapshot rows since the last call into events."""
        for found in await self.store.list_snapshots(table.id):
            before = self._known.get(found.id)
            if found != before:
                self._known[found.id] = found
                await self.happened((Operation.INSERT if before is None else Operation.UPDATE, found))

    async def happened(self, *changes: tuple[Operation, Row]) -> None:
        """Queues the events of one transaction for both components."""
        if not changes:
            return
        position = await self.store.position()
        async with self.store.consistent_read() as snapshot:
            place = snapshot.visibility
        transaction = place.xmax - 1 if isinstance(place, XidVisibility) else position  # the newest that is visible
        commit = Commit(transaction, position, 0, len(changes))
        events = [
            Event(operation, data, None if operation is Operation.INSERT else data, commit, index)
            for index, (operation, data) in enumerate(changes)
        ]
        self.for_snapshotter.append(events)
        mine = [event for event in events if isinstance(event.data, TableFile | TableMetadata)]
        if mine:
            self.for_updater.append(mine)

    async def tell_files(self, table: LakeTable, before: dict[str, TableFile]) -> None:
        """Turns changes of the table's files since `before` into the events of one transaction."""
        after = {file.file_path: file async for file in self.store.stream_files(table.id)}
        await self.happened(
            *((Operation.INSERT, file) for path, file in after.items() if path not in before),
            *((Operation.DELETE, file) for path, file in before.items() if path not in after),
        )

    async def update(self) -> None:
        """Delivers all queued events to the Iceberg updater."""
        given, self.for_updater = self.for_updater, []
        if given:
            await self.updater.on_transactions(given)

    async def tell(self) -> list[list[Event[Row]]]:
        """Delivers all queued events to the snapshotter."""
        given, self.for_snapshotter = self.for_snapshotter, []
        for events in given:
            await self.snapshotter.on_transaction(events)
        return given

    async def answered(self, asked: TableSnapshot) -> TableSnapshot:
        """Waits until the request is no longer open, and returns its row."""

        async def done() -> bool:
            return (await self.row(asked)).status != "requested"

        await eventually(done, f"an answer to request {asked.id}")
        return await self.row(asked)

    async def row(self, asked: TableSnapshot) -> TableSnapshot:
        return (await self.store.list_snapshots(asked.table_id, after=asked.id - 1, limit=1))[0]

    async def snapshot(self, table: LakeTable, tag: str | None = None) -> TableSnapshot:
        """Requests a snapshot, delivers all events, and returns the created row."""
        asked = await self.request(table, tag)
        await self.update()
        await self.tell()
        done = await self.answered(asked)
        assert done.status == "created", done.reason
        await self.see_rows(table)
        await self.tell()
        return done

    def load(self, table: LakeTable) -> Table:
        found = self.tables.load(table)
        assert found is not None, f"no Iceberg table {table.name}"
        return found

    def tags(self, table: LakeTable) -> dict[str, int]:
        return {name: ref.snapshot_id for name, ref in self.load(table).metadata.refs.items() if name != "main"}

    def ids(self, table: LakeTable, snapshot_id: int | None = None) -> list[int]:
        """Reads the ids from the files of the snapshot."""
        found: list[int] = self.load(table).scan(snapshot_id=snapshot_id).to_arrow()["id"].to_pylist()
        return sorted(found)

    async def require_agreement(self, table: LakeTable) -> None:
        digest = Digest()
        async for file in self.store.stream_files(table.id):
            digest.add(LiveFile.of(file))
        loaded = await asyncio.to_thread(self.load, table)
        assert live_digest(loaded) == digest
        assert Stamp.read(loaded.metadata).digest == digest


Open: TypeAlias = Callable[..., Awaitable[Lake]]


@pytest.fixture
async def opened_lake(opened: OpenStore, sqlite_directory: Path, clock: ManualClock) -> AsyncIterator[Open]:
    """Opens a registry's lake and starts updater and snapshotter; several lakes share the warehouse."""
    async with AsyncExitStack() as stack:

        async def start(url: str, *, ledger: bool = True) -> Lake:
            made = Lake(url, await opened(url), sqlite_directory / "warehouse", clock)
            stack.callback(made.tables.close)
            if ledger:  # as after the updater's refresh in a daemon
                lease = await made.store.take_daemon_lease("astha", "test", 60_000)
                assert lease is not None
                entry = LedgerEntry("iceberg_updater", None, None, JsonText("[]"), "live", False, None, 0, "astha")
                await made.store.write_ledger([entry], lease)
            await made.updater.start()
            stack.push_async_callback(made.updater.stop)
            await made.start()
            stack.push_async_callback(lambda: made.snapshotter.stop())  # the last one
            return made

        yield start


@pytest.fixture
async def lake(url: str, opened_lake: Open) -> Lake:
    return await opened_lake(url)
