"""A lake for the tests to break: rows by the storage manager, Iceberg by the updater, by hand or in a daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.table import Table

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from components.commands.verify.report import Difference, DifferenceKind, VerificationReport
from components.commands.verify.verification import Verification, VerifyOptions
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.iceberg import IcebergTables, open_catalog
from components.lib.lake.iceberg.registry_identity import recorded_identity
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager import StorageManager
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.json_text import to_json_text
from registry.models import LakeTable, LedgerEntry, TableFile
from registry.position import Position
from tests.fixtures.stores import OpenStore
from tests.lake import create_table, execute_sql, iceberg_tables, table_schema


class Stage:
    """`store` uses the real clock. `past` writes the ledger, so that its daemon counts as dead."""

    def __init__(
        self, url: str, store: MetadataStore, past: MetadataStore, lake: LakeSettings, manager: StorageManager
    ) -> None:
        self.url, self.store, self.past, self.lake, self.manager = url, store, past, lake, manager
        self.tables = iceberg_tables(url, lake)
        self._ids = iter(range(1_000_000))

    @property
    def context(self) -> ComponentContext:
        return ComponentContext(self.store, SystemLoopClock(), SecretStr(self.url), self.lake)

    def updater(self) -> IcebergUpdater:
        return IcebergUpdater(UpdaterSettings(), self.context)

    async def create(self, name: str = "orders", **schema: Any) -> LakeTable:
        return await create_table(self.store, self.lake.warehouse, name, table_schema(**schema))

    async def insert(self, table: LakeTable, rows: int = 2) -> list[TableFile]:
        given = [{"id": next(self._ids), "name": "n", "day": None} for _ in range(rows)]
        inserted = await self.manager.insert(table.id, given, sync=True)
        return await inserted.registered

    async def remove_one(self, table: LakeTable) -> TableFile:
        (file,) = await self.store.list_files(table.id, limit=1)
        await self.store.remove_files(table.id, [file], reason="test")
        return file

    async def commit(self) -> None:
        """Commits everything to Iceberg, as a daemon that runs for a moment."""
        updater = self.updater()
        await updater.start()
        async with self.store.consistent_read() as snapshot:
            await updater.on_refresh(snapshot)
        await updater.stop()
        await self.write_ledger("live", await self.store.position())

    async def write_ledger(self, state: str, position: Position | None, reason: str | None = None) -> None:
        lease = await self.past.take_daemon_lease("astha", "test", 1)
        assert lease is not None
        owes = position is None
        entry = LedgerEntry("iceberg_updater", position, None, to_json_text([]), state, owes, reason, 0, "astha")
        await self.past.write_ledger([entry], lease)

    def load(self, table: LakeTable) -> Table:
        found = self.tables.load(table)
        assert found is not None
        return found

    def execute(self, statement: str) -> None:
        """Executes SQL, bypassing the registry's API."""
        execute_sql(self.url, statement)

    async def verify(self, *tables: LakeTable, **options: Any) -> VerificationReport:
        iceberg = IcebergTables(open_catalog(self.url, self.lake), await recorded_identity(self.store))
        chosen = VerifyOptions(**{"timeout_s": 20.0, **options})
        try:
            run = Verification(self.store, iceberg, Objects(self.lake), SystemLoopClock(), chosen)
            return await run.run([table.id for table in tables] or None)
        finally:
            iceberg.close()


def only(report: VerificationReport) -> Difference:
    """Returns the only difference."""
    found = [difference for table in report.tables for difference in table.differences] + report.elsewhere
    assert len(found) == 1, found
    return found[0]


def kinds(report: VerificationReport) -> set[DifferenceKind]:
    return {difference.kind for table in report.tables for difference in table.differences}


def path_of(file: TableFile) -> Path:
    return Path(file.file_path.removeprefix("file://"))


@pytest.fixture
async def stage(url: str, lake: LakeSettings, opened: OpenStore) -> AsyncIterator[Stage]:
    store = await open_store(url)
    around = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)
    async with StorageManager(around) as manager:
        made = Stage(url, store, await opened(url), lake, manager)
        yield made
    made.tables.close()
    await store.close()
