"""Spark deletes rows through the catalog, merge-on-read, beside our inserts and compactions. Readers see every row that
was not deleted once, and no row that was. Run by `make rck`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from components.commands.verify.verification import Verification
from components.compactor.execution.job import CompactionJob
from components.compactor.execution.job_context import JobContext
from components.compactor.merge import merge
from components.compactor.planning.file_selection import OTHER_SPEC, UNWRITABLE
from components.compactor.planning.planner import CompactionRequest, PlannedJob, Planner
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.scoring import DELETED_ROWS
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.schema.table_schema import SchemaProblem
from components.lib.lake.storage.objects import Objects
from components.lib.storage_manager import StorageManager
from registry.contract import MetadataStore
from registry.models import LakeTable
from tests.doubles.merging import LocalExecutor
from tests.integration.components.commands.catalog.conftest import Serve
from tests.integration.components.iceberg_updater.spark_process import Spark
from tests.lake import iceberg_tables

pytestmark = [pytest.mark.long, pytest.mark.parametrize("backend", ["postgres"], indirect=True)]

MERGE_ON_READ = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read'"


class Site:
    """A registry with its catalog, Spark, and our own writers."""

    def __init__(self, url: str, store: MetadataStore, lake: LakeSettings, spark: Spark) -> None:
        self.url, self.store, self.lake, self._spark = url, store, lake, spark

    @property
    def context(self) -> ComponentContext:
        return ComponentContext(self.store, SystemLoopClock(), SecretStr(self.url), self.lake)

    async def sql(self, statement: str) -> list[list[Any]]:
        return await asyncio.to_thread(self._spark.sql, statement)

    async def ids(self, table: str) -> list[int]:
        return [row[0] for row in await self.sql(f"SELECT id FROM astha.{table} ORDER BY id")]

    async def table(self, name: str) -> LakeTable:
        found = await self.store.get_table(*name.split("."))
        assert found is not None
        return found

    async def insert(self, table: str, *ids: int) -> None:
        async with StorageManager(self.context) as manager:
            await manager.insert(table, [{"id": number, "region": "north"} for number in ids], sync=True)

    async def update_iceberg(self) -> None:
        """Commits what the registry has, as the daemon does."""
        updater = IcebergUpdater(UpdaterSettings(), self.context)
        await updater.start()
        async with self.store.consistent_read() as snapshot:
            await updater.on_refresh(snapshot)
        assert list(updater.problems()) == []
        await updater.stop()

    async def plan(self, name: str, partition: str = "region=north", *, forced: bool = False) -> PlannedJob:
        policy = CompactionPolicy(min_inputs=2)
        planner = Planner(self.store, SystemLoopClock(), self.lake, policy, 1 << 28)
        found = await planner.plan((await self.table(name)).id, partition, CompactionRequest(forced=forced))
        assert found is not None
        return found

    async def compact(self, name: str, *, forced: bool = False) -> PlannedJob:
        planned = await self.plan(name, forced=forced)
        assert planned.spec is not None, planned.plan
        context = JobContext(
            store=self.store, executor=LocalExecutor(merge), objects=Objects(self.lake), clock=SystemLoopClock(),
            owner="test",
        )  # fmt: skip
        outcome = await CompactionJob(planned.spec, context).run()
        assert outcome.status == "done", outcome
        return planned

    async def require_verified(self) -> None:
        tables = iceberg_tables(self.url, self.lake)
        try:
            report = await Verification(self.store, tables, Objects(self.lake), SystemLoopClock()).run()
        finally:
            tables.close()
        assert report.equal, report


@pytest.fixture
async def site(serve: Serve, store: MetadataStore, url: str, lake: LakeSettings, tmp_path: Path) -> AsyncIterator[Site]:
    async with serve() as catalog_url:
        with await asyncio.to_thread(Spark, tmp_path, {"type": "rest", "uri": catalog_url}) as spark:
            made = Site(url, store, lake, spark)
            await made.sql("CREATE NAMESPACE astha.sales")
            yield made


async def test_merge_on_read(site: Site) -> None:
    await _deletes_are_applied(site)
    await _a_delete_never_meets_a_swap(site)
    await _a_partition_spec_changes(site)
    await _version_3_is_tracked(site)
    await site.require_verified()


async def _deletes_are_applied(site: Site) -> None:
    table = "sales.orders"
    await site.sql(
        f"CREATE TABLE astha.{table} (id bigint, region string) USING iceberg PARTITIONED BY (region) "
        f"TBLPROPERTIES ('format-version'='2', {MERGE_ON_READ})"
    )
    await site.sql(f"INSERT INTO astha.{table} SELECT id, 'north' FROM range(6)")
    await site.insert(table, 6, 7, 8, 9)
    await site.update_iceberg()
    await site.sql(f"DELETE FROM astha.{table} WHERE id IN (1, 2, 7)")
    left = [0, 3, 4, 5, 6, 8, 9]
    assert await site.ids(table) == left
    rows = await site.store.list_delete_files((await site.table(table)).id)
    assert sum(row.row_count for row in rows) == 3
    assert {row.partition_path for row in rows} == {"region=north"}
    await site.insert(table, 10)
    await site.update_iceberg()
    assert await site.ids(table) == [*left, 10], "our commit keeps the deletes"
    await site.compact(table)
    assert await site.store.list_delete_files((await site.table(table)).id) == []
    assert await site.ids(table) == [*left, 10], "not in Iceberg yet"
    await site.update_iceberg()
    assert await site.ids(table) == [*left, 10]
    assert await site.sql(f"SELECT count(*) FROM astha.{table}.delete_files") == [[0]]
    await site.require_verified()


async def _a_delete_never_meets_a_swap(site: Site) -> None:
    """The registry has a swap that Iceberg does not have yet. One delete file may name several data files."""
    table = "sales.orders"
    await site.sql(f"ALTER TABLE astha.{table} SET TBLPROPERTIES ('write.delete.granularity'='partition')")
    await site.insert(table, 11, 12)
    await site.update_iceberg()
    await site.compact(table, forced=True)
    with pytest.raises(AssertionError, match="not in the registry"):
        await site.sql(f"DELETE FROM astha.{table} WHERE id IN (0, 11)")
    await site.update_iceberg()
    everything = [0, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert await site.ids(table) == everything
    await site.insert(table, 13)
    await site.update_iceberg()
    await site.sql(f"DELETE FROM astha.{table} WHERE id IN (0, 3, 4, 5, 13)")
    left = [6, 8, 9, 10, 11, 12]
    (row,) = await site.store.list_delete_files((await site.table(table)).id)
    assert (row.referenced_data_file, row.row_count) == (None, 5)
    planned = await site.compact(table)
    assert planned.plan.rule == DELETED_ROWS
    await site.update_iceberg()
    assert await site.ids(table) == left
    await site.require_verified()


async def _a_partition_spec_changes(site: Site) -> None:
    table = "sales.orders"
    before = await site.ids(table)
    await site.insert(table, 20, 21)
    await site.update_iceberg()
    await site.sql(f"ALTER TABLE astha.{table} ADD PARTITION FIELD bucket(2, id)")
    assert (await site.plan(table)).plan.rule == OTHER_SPEC
    await site.insert(table, 22)
    await site.update_iceberg()
    assert await site.ids(table) == [*before, 20, 21, 22]
    paths = {file.partition_path for file in await site.store.list_files((await site.table(table)).id)}
    assert "region=north" in paths
    assert any(path.startswith("region=north/id_bucket") for path in paths)


async def _version_3_is_tracked(site: Site) -> None:
    table = "sales.third"
    await site.sql(
        f"CREATE TABLE astha.{table} (id bigint, region string) USING iceberg PARTITIONED BY (region) "
        f"TBLPROPERTIES ('format-version'='3', {MERGE_ON_READ})"
    )
    await site.sql(f"INSERT INTO astha.{table} SELECT id, 'north' FROM range(4)")
    await site.sql(f"DELETE FROM astha.{table} WHERE id = 2")
    (row,) = await site.store.list_delete_files((await site.table(table)).id)
    assert (row.file_type, row.row_count) == ("puffin", 1)
    assert await site.ids(table) == [0, 1, 3]
    plan = await site.plan(table)
    assert (plan.spec, plan.plan.rule) == (None, UNWRITABLE)
    assert "format version 3" in (plan.plan.reason or "")
    with pytest.raises(SchemaProblem, match="format version 3"):
        await site.insert(table, 9)
    await site.update_iceberg()
    assert await site.ids(table) == [0, 1, 3]
