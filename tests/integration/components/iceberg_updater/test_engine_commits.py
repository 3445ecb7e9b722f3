"""Engines that commit through the catalog, beside the updater: both win in the end, and nothing is committed twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pyarrow.parquet as pq
import pytest

from astha.events import Operation
from components.lib.lake.file_set_digest import LiveFile
from components.lib.lake.iceberg.registry_identity import registry_identity
from registry.contract import ConsistentRead
from registry.errors import Conflict
from registry.inputs import CatalogCommit, FileDraft
from registry.models import IcebergCommit, LakeTable, Row, TableFile, TableMetadata, UploadIntent
from tests.catalog_engine import CatalogEngine
from tests.fixtures.daemons import RunDaemon
from tests.foreign_files import forged_metadata, local, named_files
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.integration.components.iceberg_updater.test_daemon import agrees
from tests.lake import iceberg_tables
from tests.parquet_files import row, write_file

_names = count()


@pytest.fixture
async def engine(lake: Lake) -> AsyncIterator[CatalogEngine]:
    tables = iceberg_tables(lake.url, lake.settings)
    yield CatalogEngine(lake.store, tables, await registry_identity(lake.store))
    tables.close()


def external(lake: Lake, table: LakeTable, *ids: int) -> list[FileDraft]:
    """Writes a file as an engine does."""
    directory = lake.warehouse / table.name / "engine"
    return [write_file(directory, [row(number) for number in ids], name=f"{next(_names):05}.parquet")]


async def rows(snapshot: ConsistentRead, kind: type[Row], table: LakeTable) -> list[Row]:
    return [found async for page in snapshot.rows(kind, table_id=table.id) for found in page]


async def happened(lake: Lake, table: LakeTable, *kinds: type[Row]) -> None:
    """Records the transaction of the last commit to the table through the catalog."""
    async with lake.store.consistent_read() as snapshot:
        marker = (await rows(snapshot, IcebergCommit, table))[-1]
        found = [(await rows(snapshot, kind, table))[-1] for kind in kinds]
    await lake.happened(*((Operation.INSERT, one) for one in (marker, *found)))


async def test_what_an_engine_committed_is_not_committed_again(lake: Lake, engine: CatalogEngine) -> None:
    table = await lake.create()
    await lake.deliver()
    await engine.append(table, external(lake, table, 1))
    await happened(lake, table, TableFile)
    location = lake.load(table).metadata_location
    await lake.deliver()
    assert lake.load(table).metadata_location == location, "the engine's transaction needs no commit"
    await lake.insert(table, 2)
    await engine.append(table, external(lake, table, 3))  # before Iceberg has what was registered before
    await happened(lake, table, TableFile)
    await lake.insert(table, 4)
    given = await lake.deliver()
    assert lake.ids(table) == [1, 2, 3, 4]
    assert lake.operations(table) == ["append", "append", "append"]
    await lake.require_agreement(table)
    await lake.compact(table, await lake.store.list_files(table.id), 1, 2, 3, 4)
    await lake.deliver()
    await lake.updater.on_transactions(given)
    await lake.restart()
    await lake.updater.on_transactions(given)
    assert lake.ids(table) == [1, 2, 3, 4]
    assert lake.operations(table)[3:] == ["replace"]
    await lake.require_agreement(table)
    assert not list(lake.updater.problems())


async def test_a_cached_table_is_loaded_again(lake: Lake, engine: CatalogEngine) -> None:
    """The swap of an engine's file, although the updater's cached table does not have the file yet."""
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.deliver()
    await engine.append(table, external(lake, table, 2))
    assert lake.updater._thread is not None
    loads = lake.updater._thread.committer.tables._loaded
    stale = dict(loads)
    await happened(lake, table, TableFile)
    await lake.deliver()
    loads.update(stale)
    (file,) = [file for file in await lake.store.list_files(table.id) if file.operation == "external"]
    await lake.compact(table, [file], 2)
    await lake.deliver()
    assert not list(lake.updater.problems())
    assert lake.operations(table)[-1] == "replace"
    await lake.require_agreement(table)


async def test_an_engine_loses_against_a_swap_that_iceberg_does_not_have_yet(lake: Lake, engine: CatalogEngine) -> None:
    table = await lake.create()
    files = [*await lake.insert(table, 1), *await lake.insert(table, 2)]
    await lake.deliver()
    await lake.compact(table, files, 1, 2)

    def rewrite(live: dict[str, LiveFile]) -> tuple[list[FileDraft], list[LiveFile]]:
        return external(lake, table, 1, 2), list(live.values())

    with pytest.raises(AssertionError, match="conflicted"):
        await engine.commit(table, rewrite, attempts=2)
    await lake.deliver()
    await engine.commit(table, rewrite, attempts=1)
    await happened(lake, table, TableFile)
    await lake.deliver()
    assert lake.ids(table) == [1, 2]
    await lake.require_agreement(table)


async def test_an_engine_restores_a_file_that_a_rollback_had_restored(lake: Lake, engine: CatalogEngine) -> None:
    """And that the registry has removed again, before Iceberg has followed."""
    table = await lake.create()
    (draft,) = external(lake, table, 1)
    files = await lake.store.add_files(table.id, [draft])
    await lake.happened((Operation.INSERT, files[0]))
    await lake.deliver()
    await lake.remove(table, files)
    await lake.deliver()
    restored = await lake.store.swap_files(table.id, [], [draft], operation="rollback", operation_id="rollback-1")
    await lake.happened((Operation.INSERT, restored[0]))
    first, lake.pending = lake.pending, []
    await lake.remove(table, restored)
    await engine.append(table, [draft])
    await happened(lake, table, TableFile)
    lake.pending, later = first, lake.pending
    await lake.deliver()
    assert lake.ids(table) == [1]
    lake.pending = later
    await lake.deliver()
    await lake.settled()
    assert lake.ids(table) == [1]
    await lake.require_agreement(table)


async def test_tables_of_engines_are_recognised_renamed_and_dropped(lake: Lake, engine: CatalogEngine) -> None:
    await lake.refresh()  # the updater has scanned the catalog: it can't find the table by that
    location = (lake.warehouse / "made").resolve().as_uri()
    table = await engine.create("shop", "made", location)
    await happened(lake, table, TableMetadata)
    await lake.deliver()
    await lake.insert(table, 1)
    await lake.deliver()
    assert lake.ids(table) == [1]
    catalog = engine.tables.catalog.name
    await lake.store.rename_catalog_table(catalog, "shop", "made", "shop", "renamed", table_id=table.id)
    renamed = await lake.store.get_table_by_id(table.id)
    assert renamed is not None
    await lake.happened((Operation.UPDATE, await lake._metadata(renamed)))
    await lake.insert(renamed, 2)
    await lake.deliver()
    assert lake.ids(renamed) == [1, 2]
    await lake.require_agreement(renamed)
    assert lake.tables.load(table) is None
    await lake.drop(renamed)
    await lake.deliver()
    assert lake.tables.load(renamed) is None


async def test_a_new_table_that_was_never_written_to_is_dropped(lake: Lake, engine: CatalogEngine) -> None:
    await lake.refresh()
    table = await engine.create("shop", "made", (lake.warehouse / "made").resolve().as_uri())
    await happened(lake, table, TableMetadata)
    await lake.deliver()
    await lake.drop(table)
    await lake.deliver()
    assert lake.tables.load(table) is None


async def test_the_successor_of_a_dropped_table_keeps_its_name(lake: Lake, engine: CatalogEngine) -> None:
    """The updater still has events of a table that an engine has dropped and created again."""
    table = await lake.create("same")
    await lake.insert(table, 1)
    await lake.deliver()
    await lake.insert(table, 2)
    gone = await lake.store.list_table_metadata(table.id)
    catalog = engine.tables.catalog.name
    await lake.store.drop_catalog_table(catalog, "shop", "same", purge=False, table_id=table.id)
    second = await engine.create("shop", "same", (lake.warehouse / "same-2").resolve().as_uri())
    await engine.append(second, external(lake, second, 7))
    assert lake.updater._thread is not None
    lake.updater._thread.committer.tables.forget_one(table.id)
    await lake.deliver()
    await lake.happened(*((Operation.DELETE, one) for one in gone))
    await happened(lake, second, TableFile)
    await lake.deliver()
    assert lake.ids(second) == [7]
    await lake.require_agreement(second)


async def test_a_refresh_keeps_what_engines_commit_meanwhile(lake: Lake, engine: CatalogEngine) -> None:
    """The snapshot of the registry is older than the engine's commits, and contains files that Iceberg lacks."""
    table = await lake.create()
    files = await lake.insert(table, 1)
    await lake.deliver()
    await lake.insert(table, 2)
    await lake.remove(table, files)
    dropped = await engine.create("shop", "dropped", (lake.warehouse / "dropped").resolve().as_uri())
    async with lake.store.consistent_read() as snapshot:
        await engine.append(table, external(lake, table, 3))
        made = await engine.create("shop", "made", (lake.warehouse / "made").resolve().as_uri())
        await engine.append(made, external(lake, made, 4))
        await lake.store.drop_catalog_table(engine.tables.catalog.name, "shop", "dropped", purge=False)
        successor = await engine.create("shop", "dropped", (lake.warehouse / "successor").resolve().as_uri())
        await lake.updater.on_refresh(snapshot)
    await lake.settled()
    assert lake.ids(table) == [2, 3]
    assert lake.ids(made) == [4]
    await lake.require_agreement(table, made, successor)
    assert lake.tables.names().keys() == {table.id, made.id, successor.id}
    assert dropped.id != successor.id


async def test_engines_and_the_updater_in_a_daemon(lake: Lake, engine: CatalogEngine, run_daemon: RunDaemon) -> None:
    """Engines append and rewrite while files are inserted and swapped: neither starves, and all rows are there once."""
    await lake.updater.stop()
    updater = lake.new_updater()
    running = await run_daemon(lake.url, {"iceberg_updater": updater})
    await running.live()
    table = await engine.create("shop", "orders", (lake.warehouse / "orders").resolve().as_uri())
    numbers = count()
    expected: set[int] = set()

    async def appends() -> None:
        for _ in range(10):
            number = next(numbers)
            await engine.append(table, external(lake, table, number))
            expected.add(number)

    async def rewrites() -> None:
        """Copy-on-write: one of the engine's files is replaced by another with the same rows."""
        for _ in range(5):

            def rewrite(live: dict[str, LiveFile]) -> tuple[list[FileDraft], list[LiveFile]]:
                own = [file for path, file in sorted(live.items()) if "/engine/" in path and file.rows == 1]
                if not own:
                    return [], []
                ids = engine_ids(own[0].path)
                return external(lake, table, *ids), own[:1]

            await engine.commit(table, rewrite)

    async def inserts() -> None:
        for _ in range(10):
            number = next(numbers)
            await lake.insert(table, number)
            expected.add(number)
            own = [file for file in await lake.store.list_files(table.id) if file.row_count == 1]
            if len(own) >= 3:
                ids = [number for file in own for number in engine_ids(file.file_path)]
                try:
                    await lake.compact(table, own, *ids)
                except Conflict:
                    continue

    await asyncio.gather(appends(), rewrites(), inserts())
    await running.until(lambda: agrees(lake, table), "registry and Iceberg in agreement")
    assert lake.ids(table) == sorted(expected)
    await lake.require_agreement(table)
    assert not list(updater.problems())
    await running.stop()


def engine_ids(path: str) -> list[int]:
    found: list[int] = pq.read_table(path.removeprefix("file://"))["id"].to_pylist()
    return found


async def test_a_drop_leaves_the_files_of_a_table_that_shares_the_metadata_directory(
    lake: Lake, engine: CatalogEngine
) -> None:
    """The metadata of the dropped table was written into the other's directory, and names its files."""
    dropped, kept = await lake.create("dropped"), await lake.create("kept")
    for table in (dropped, kept):
        await lake.insert(table, 1)
    await lake.deliver()
    forger, victim = lake.load(dropped), lake.load(kept)
    theirs = named_files(victim)
    pointer = f"{victim.metadata_location.rpartition('/')[0]}/forged.metadata.json"
    local(pointer).write_bytes(forged_metadata(victim, forger))
    await lake.store.commit_catalog(
        [
            CatalogCommit(
                catalog=engine.tables.catalog.name, namespace="shop", name="dropped", expected=forger.metadata_location,
                location=pointer, table_id=dropped.id, operation="metadata",
            )
        ]
    )  # fmt: skip
    await lake.restart()
    await lake.drop(dropped, purge=True)
    await lake.deliver()
    assert lake.tables.load(dropped) is None
    async with lake.store.consistent_read() as snapshot:
        handed_over = {row.path async for page in snapshot.rows(UploadIntent) for row in page}
    assert {found.manifest_list for found in forger.metadata.snapshots} <= handed_over
    assert not handed_over & theirs
