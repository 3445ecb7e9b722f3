"""Other operations at any step of a compaction: no row is lost or resurrected, and no file is left over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyiceberg.types import NestedField, StringType

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext
from components.compactor.execution.job_context import Step
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.iceberg import TableCommit
from components.lib.lake.schema.evolution import AddColumn, evolve
from components.lib.lake.storage import local_files
from components.lib.lake.storage.locations import parse
from components.lib.lake.storage.objects import Objects
from components.snapshotter.cli_context import call
from components.snapshotter.rollback import CantRollBack, Rollback
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.errors import Conflict
from registry.models import TableFile
from tests.integration.components.compactor.harness import Bench, Gate
from tests.lake import iceberg_tables

FILES, NEWER = 4, 2


class Table:
    """One table of the lake, and its expected rows."""

    def __init__(self, url: str, store: MetadataStore, warehouse: Path) -> None:
        self.bench = Bench(store, warehouse)
        self.store = store
        around = ComponentContext(store, SystemLoopClock(), SecretStr(url), self.bench.lake)
        self.updater = IcebergUpdater(UpdaterSettings(), around)
        self.iceberg = iceberg_tables(url, self.bench.lake)
        self.files: list[TableFile] = []
        self.expected: list[int] = []
        self.first = 0  # the Iceberg snapshot before the newer files
        self.tagged: list[int] | None = None

    async def prepare(self, name: str) -> None:
        self.tagged = None
        await self.bench.create(name)
        self.files = await self.bench.insert(FILES)
        await self.follow()
        self.first = self.current()
        self.files += await self.bench.insert(NEWER)
        await self.follow()
        self.expected = await self.bench.ids()

    async def follow(self) -> None:
        async with self.store.consistent_read() as snapshot:
            await self.updater.on_refresh(snapshot)

    def current(self) -> int:
        loaded = self.iceberg.load(self.bench.table)
        assert loaded is not None
        assert loaded.metadata.current_snapshot_id is not None
        return loaded.metadata.current_snapshot_id

    def read(self, snapshot: int | None = None) -> list[int]:
        loaded = self.iceberg.load(self.bench.table)
        assert loaded is not None
        found: list[int] = loaded.scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist()
        return sorted(found)

    # -- what others do -----------------------------------------------------------------------------------

    async def insert(self) -> None:
        self.expected = sorted(self.expected + self.bench.read(await self.bench.insert(1)))

    async def delete(self) -> None:
        gone = self.files[1]
        try:
            await self.store.remove_files(self.bench.table.id, [gone], reason="test")
        except Conflict:
            return  # it is in another file by now
        self.expected = sorted(set(self.expected) - set(self.bench.read([gone])))

    async def swap(self) -> None:
        """Another compactor that ignores claims."""
        drafts = [self.bench.merged(self.files[:2])]
        try:
            await self.store.swap_files(self.bench.table.id, self.files[:2], drafts, operation_id="another")
        except Conflict:
            local_files.delete(parse(draft.file_path).path for draft in drafts)

    async def change_schema(self) -> None:
        versions = await self.store.list_table_metadata(self.bench.table.id)
        draft = evolve(versions, [AddColumn(NestedField(0, "extra", StringType()))])
        await self.store.add_schema_version(self.bench.table.id, draft, expected=1)

    async def drop(self) -> None:
        await self.store.drop_table(self.bench.table.id, purge=True)
        self.expected = []

    async def snapshot(self) -> None:
        await self.follow()

        def tag(commit: TableCommit) -> None:
            commit.set_tag("kept", self.current())

        self.iceberg.forget()
        # In a thread: on SQLite it may have to wait for a heartbeat that the loop has to finish.
        await asyncio.to_thread(self.iceberg.commit, self.bench.table, tag)
        self.tagged = self.expected

    async def roll_back(self) -> None:
        try:
            await Rollback(self.store, self.iceberg, call, Objects(self.bench.lake)).roll_back(
                self.bench.table, str(self.first)
            )
        except CantRollBack as problem:
            raise AssertionError(problem) from problem
        self.expected = sorted(self.bench.read(self.files[:FILES]))


ACTIONS: dict[str, Callable[[Table], Awaitable[None]]] = {
    "insert": Table.insert,
    "delete": Table.delete,
    "swap": Table.swap,
    "schema": Table.change_schema,
    "drop": Table.drop,
    "snapshot": Table.snapshot,
    "rollback": Table.roll_back,
}


@pytest.fixture
async def table(url: str, warehouse: Path) -> AsyncIterator[Table]:
    store = await open_store(url)
    made = Table(url, store, warehouse)
    await made.updater.start()
    yield made
    await made.updater.stop()
    made.iceberg.close()
    await store.close()


@pytest.mark.parametrize("action", ACTIONS)
async def test_other_operations_at_every_step(table: Table, action: str) -> None:
    for step in list(Step)[1:]:
        await table.prepare(f"{action}_{step}")
        job = await table.bench.job(on_step=Gate(step, lambda: ACTIONS[action](table)))
        outcome = await job.run()
        assert outcome.status in ("done", "aborted"), outcome
        assert await table.bench.ids() == table.expected, step
        await table.bench.require_tidy()
        await table.follow()
        if action != "drop":
            assert table.read() == table.expected, step
        if table.tagged is not None:
            loaded = table.iceberg.load(table.bench.table)
            assert loaded is not None
            assert table.read(loaded.metadata.refs["kept"].snapshot_id) == table.tagged
        if action in ("insert", "schema", "snapshot"):
            assert outcome.status == "done", outcome
