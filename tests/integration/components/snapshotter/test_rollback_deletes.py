"""Rollbacks of tables with delete files of other engines: rows come back only if the snapshot has them."""

from __future__ import annotations

import pytest

from components.snapshotter.rollback import CantRollBack
from registry.models import LakeTable, TableFile
from tests.delete_files import position_deletes
from tests.engine_commits import commit_as_engine
from tests.integration.components.snapshotter.conftest import Lake
from tests.integration.components.snapshotter.test_rollback import rollback_of


async def delete_first_row(lake: Lake, table: LakeTable, *files: TableFile) -> str:
    """Returns the id of the engine's snapshot."""
    path = lake.warehouse / table.name / "d.parquet"
    deletes = position_deletes(path, {file.file_path: [0] for file in files})
    await commit_as_engine(lake.store, lake.tables, table, deletes=[deletes])
    found = lake.tables.load(table)
    assert found is not None
    return str(found.metadata.current_snapshot_id)


async def follow(lake: Lake) -> None:
    async with lake.store.consistent_read() as snapshot:
        await lake.updater.on_refresh(snapshot)
    lake.for_updater.clear()


async def test_a_rollback_undoes_later_deletes(lake: Lake) -> None:
    table = await lake.create()
    files = await lake.insert(table, 1, 2)
    await lake.snapshot(table, "old")
    deleted = await delete_first_row(lake, table, *files)
    assert lake.ids(table) == [2]
    await rollback_of(lake).roll_back(table, "old")
    await follow(lake)
    assert lake.ids(table) == [1, 2]
    assert await lake.store.list_delete_files(table.id) == []
    with pytest.raises(CantRollBack, match="1 of its delete files are no longer there"):
        await rollback_of(lake).roll_back(table, deleted)
    assert lake.ids(table) == [1, 2]


async def test_deletes_that_the_snapshot_has_stay(lake: Lake) -> None:
    table = await lake.create()
    first, second = await lake.insert(table, 1, 2), await lake.insert(table, 3)
    await lake.update()
    deleted = await delete_first_row(lake, table, *first, *second)
    await lake.insert(table, 4)
    await follow(lake)
    await rollback_of(lake).roll_back(table, deleted)
    await follow(lake)
    assert lake.ids(table) == [2]
    await lake.store.remove_files(table.id, second, reason="test")
    await follow(lake)
    with pytest.raises(CantRollBack, match="deletes rows of a file that has to be restored"):
        await rollback_of(lake).roll_back(table, deleted)
