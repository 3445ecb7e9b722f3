"""A registry, a warehouse and an updater whose events the test delivers by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

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
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.updater_state import read_failing_tables
from registry.contract import MetadataStore
from registry.models import LakeTable, Row, TableFile, TableMetadata
from registry.position import XidVisibility
from tests.fixtures.stores import OpenStore
from tests.lake import iceberg_tables
from tests.parquet_files import PLAIN, row, write_files
from tests.waiting import eventually

_LONG_AGO = 3
"""The number of a transaction that every snapshot contains."""


class Lake:
    """Collects the events of its registry writes in `pending`, by transaction, until `deliver`."""

    def __init__(self, url: str, store: MetadataStore, warehouse: Path, settings: LakeSettings) -> None:
        self.url = url
        self.store = store
        self.warehouse = warehouse
        self.settings = settings
        self.pending: list[list[Event[Row]]] = []
        self.updater = self.new_updater()
        self.tables = iceberg_tables(url, settings)

    def new_updater(self) -> IcebergUpdater:
        context = ComponentContext(self.store, SystemLoopClock(), SecretStr(self.url), self.settings)
        return IcebergUpdater(UpdaterSettings(max_snapshots=20, retry_initial_s=0.05, retry_max_s=0.5), context)

    async def restart(self) -> None:
        await self.updater.stop()
        self.updater = self.new_updater()
        await self.updater.start()

    async def create(
        self, name: str = "orders", schema: TableSchema = PLAIN, properties: dict[str, str] | None = None
    ) -> LakeTable:
        location = (self.warehouse / name).resolve().as_uri()
        table = await self.store.create_table("shop", name, location, schema.draft(properties=properties))
        await self.happened((Operation.INSERT, await self._metadata(table, 1)))
        return table

    async def evolve(self, table: LakeTable, schema: TableSchema) -> None:
        added = await self.store.add_schema_version(table.id, schema.draft(), expected=schema.version - 1)
        await self.happened((Operation.INSERT, added))

    async def insert(self, table: LakeTable, *ids: int, schema: TableSchema = PLAIN, **columns: Any) -> list[TableFile]:
        rows = [{**row(number), **columns} for number in ids]
        drafts = write_files(self.warehouse / table.name / "data", rows, schema)
        files = await self.store.add_files(table.id, drafts)
        await self.happened(*((Operation.INSERT, file) for file in files))
        return files

    async def remove(self, table: LakeTable, files: Sequence[TableFile]) -> None:
        await self.store.remove_files(table.id, files, reason="test")
        await self.happened(*((Operation.DELETE, file) for file in files))

    async def compact(self, table: LakeTable, old: Sequence[TableFile], *ids: int) -> list[TableFile]:
        drafts = write_files(self.warehouse / table.name / "data", [row(number) for number in ids], PLAIN)
        files = await self.store.swap_files(table.id, old, drafts, operation_id="swap-1")
        await self.happened(*((Operation.INSERT, file) for file in files), *((Operation.DELETE, file) for file in old))
        return files

    async def rename(self, table: LakeTable, name: str) -> LakeTable:
        renamed = await self.store.alter_table(table.id, name=name)
        await self.happened((Operation.UPDATE, await self._metadata(table)))
        return renamed

    async def drop(self, table: LakeTable, *, purge: bool = False) -> None:
        rows = await self.store.list_table_metadata(table.id)
        files = [file async for file in self.store.stream_files(table.id)]
        await self.store.drop_table(table.id, purge=purge)
        await self.happened(*((Operation.DELETE, gone) for gone in (*files, *rows)))

    async def _metadata(self, table: LakeTable, version: int | None = None) -> TableMetadata:
        found = await self.store.get_table_metadata(table.id, version)
        assert found is not None
        return found

    async def happened(self, *changes: tuple[Operation, Row]) -> None:
        """Records one transaction, as the stream brings it after its commit."""
        async with self.store.consistent_read() as snapshot:
            visibility = snapshot.visibility
        # On PostgreSQL snapshots know transactions by id: the newest completed one is in later snapshots only.
        transaction = visibility.xmax - 1 if isinstance(visibility, XidVisibility) else _LONG_AGO
        commit = Commit(transaction, await self.store.position(), 0, len(changes))
        self.pending.append(
            [
                Event(operation, data, None if operation is Operation.INSERT else data, commit, index)
                for index, (operation, data) in enumerate(changes)
            ]
        )

    async def deliver(self) -> list[list[Event[Row]]]:
        """Delivers everything pending in one call. Returns it, so that it can be delivered again."""
        given, self.pending = self.pending, []
        await self.updater.on_transactions(given)
        return given

    async def refresh(self) -> None:
        async with self.store.consistent_read() as snapshot:
            await self.updater.on_refresh(snapshot)
        self.pending = []

    async def settled(self) -> None:
        """Waits until no table refresh is pending, in memory and in the registry."""

        async def is_settled() -> bool:
            return not list(self.updater.problems()) and not await read_failing_tables(self.store)

        await eventually(is_settled, "every table is up to date")

    def load(self, table: LakeTable) -> Table:
        found = self.tables.load(table)
        assert found is not None, f"no Iceberg table {table.name}"
        return found

    async def require_agreement(self, *tables: LakeTable) -> None:
        """The registry's files, the manifests' and the stamp's are the same."""
        for table in tables:
            digest = Digest()
            async for file in self.store.stream_files(table.id):
                digest.add(LiveFile.of(file))
            loaded = self.load(table)
            assert live_digest(loaded) == digest, f"{table.name}: files differ"
            assert Stamp.read(loaded.metadata).digest == digest, f"{table.name}: the stamp differs"
            assert Stamp.read(loaded.metadata).snapshot == loaded.metadata.current_snapshot_id

    def ids(self, table: LakeTable) -> list[int]:
        found: list[int] = self.load(table).scan().to_arrow()["id"].to_pylist()
        return sorted(found)

    def operations(self, table: LakeTable) -> list[str]:
        snapshots = sorted(self.load(table).metadata.snapshots, key=lambda known: known.sequence_number or 0)
        return [known.summary.operation.value for known in snapshots if known.summary]

    def stopped(self, table: LakeTable) -> str | None:
        return self.load(table).metadata.properties.get("astha.stopped")


@pytest.fixture
def lake_settings() -> LakeSettings:
    """SQL catalog in the registry's database; overridden by tests of other catalogs."""
    return LakeSettings()


@pytest.fixture
async def lake(url: str, opened: OpenStore, sqlite_directory: Path, lake_settings: LakeSettings) -> AsyncIterator[Lake]:
    made = Lake(url, await opened(url), sqlite_directory / "warehouse", lake_settings)
    await made.updater.start()
    yield made
    await made.updater.stop()
    made.tables.close()
