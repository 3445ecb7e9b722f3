"""Tables with delete files of other engines, as the updater commits to them. No deleted row ever comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from astha.events import Operation
from components.iceberg_updater.external_commits import adopt, revert
from components.lib.lake.iceberg import TableProblem, delete_files
from registry.models import IcebergCommit, LakeTable, Row, TableDeleteFile, TableFile
from tests.delete_files import delete_draft, position_deletes
from tests.engine_commits import commit_as_engine
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.parquet_files import PLAIN, row, write_files


class Deletes:
    """A table with two files of two rows, of which an engine has deleted rows 1 and 3."""

    def __init__(self, lake: Lake, table: LakeTable, files: list[TableFile]) -> None:
        self.lake, self.table, self.files = lake, table, files

    @property
    def directory(self) -> Path:
        return self.lake.warehouse / self.table.name / "data"

    async def rows(self) -> list[TableDeleteFile]:
        return await self.lake.store.list_delete_files(self.table.id)

    async def swap(self, *ids: int) -> None:
        """Replaces both files by one with these rows, as the compactor does, and removes the delete files."""
        lake, table, gone = self.lake, self.table, await self.rows()
        drafts = write_files(self.directory, [row(number) for number in ids], PLAIN)
        new = await lake.store.swap_files(
            table.id, self.files, drafts, operation_id="swap-1", removed_deletes=gone
        )  # fmt: skip
        old: list[Row] = [*self.files, *gone]
        await lake.happened(
            *((Operation.INSERT, file) for file in new), *((Operation.DELETE, removed) for removed in old)
        )

    def snapshots(self) -> int:
        return len(self.lake.load(self.table).metadata.snapshots)


@pytest.fixture
async def deleted(lake: Lake) -> Deletes:
    table = await lake.create()
    files = [*await lake.insert(table, 1, 2), *await lake.insert(table, 3, 4)]
    await lake.deliver()
    made = Deletes(lake, table, files)
    positions = {files[0].file_path: [0], files[1].file_path: [0]}
    await commit_as_engine(
        lake.store, lake.tables, table, deletes=[position_deletes(made.directory / "d.parquet", positions)]
    )
    assert lake.ids(table) == [2, 4]
    return made


async def test_own_commits_keep_the_delete_files(deleted: Deletes) -> None:
    lake, table = deleted.lake, deleted.table
    await lake.insert(table, 5)
    await lake.deliver()
    assert lake.ids(table) == [2, 4, 5]
    before = deleted.snapshots()
    await lake.refresh()
    await lake.restart()
    await lake.refresh()
    assert lake.ids(table) == [2, 4, 5]
    assert deleted.snapshots() == before, "a refresh has nothing to do"
    assert lake.stopped(table) is None


@pytest.mark.parametrize("by_refresh", [False, True])
async def test_a_swap_removes_data_and_delete_files_together(deleted: Deletes, by_refresh: bool) -> None:
    lake, table = deleted.lake, deleted.table
    await deleted.swap(2, 4)
    await (lake.refresh() if by_refresh else lake.deliver())
    assert lake.ids(table) == [2, 4]
    assert not delete_files(lake.load(table))
    assert lake.operations(table)[-1] == ("overwrite" if by_refresh else "replace")
    await lake.require_agreement(table)
    awaiting = await lake.store.list_files_awaiting_deletion(table_id=table.id)
    assert any(file.file_path.endswith("d.parquet") for file in awaiting)


async def test_a_lost_iceberg_table_gets_its_deletes_again(deleted: Deletes) -> None:
    lake, table = deleted.lake, deleted.table
    lake.tables.catalog.drop_table(("shop", "orders"))
    await lake.restart()
    await lake.refresh()
    assert lake.ids(table) == [2, 4]
    assert deleted.snapshots() == 1


async def test_a_lost_equality_delete_stops_the_table(deleted: Deletes) -> None:
    lake, table = deleted.lake, deleted.table
    file = position_deletes(deleted.directory / "e.parquet", {deleted.files[0].file_path: [1]})
    draft = delete_draft(file)
    equality = type(draft)(**{name: getattr(draft, name) for name in draft.__struct_fields__} | {"content": "equality"})
    await commit_as_engine(lake.store, lake.tables, table, drafts=[equality])  # in the registry only
    await lake.refresh()
    assert "deletes rows by equality, and is not in Iceberg any more" in (lake.stopped(table) or "")


async def test_what_an_engine_has_committed_is_not_committed_again(deleted: Deletes) -> None:
    lake, table = deleted.lake, deleted.table
    drafts = write_files(deleted.directory, [row(9)], PLAIN)
    await commit_as_engine(lake.store, lake.tables, table, added=drafts, removed=deleted.files[:1])
    async with lake.store.consistent_read() as snapshot:
        markers = [commit async for page in snapshot.rows(IcebergCommit) for commit in page]
    (added,) = await lake.store.get_files(table.id, [drafts[0].file_path])
    await lake.happened(
        (Operation.INSERT, markers[-1]), (Operation.INSERT, added), (Operation.DELETE, deleted.files[0])
    )
    before = deleted.snapshots()
    await lake.insert(table, 10)
    await lake.deliver()
    assert lake.ids(table) == [4, 9, 10]
    assert deleted.snapshots() == before + 1
    await lake.require_agreement(table)


async def test_a_refresh_does_not_undo_a_later_commit_of_an_engine(deleted: Deletes) -> None:
    """The refresh reads the registry first, then Iceberg: an engine may commit in between."""
    lake, table = deleted.lake, deleted.table
    await lake.insert(table, 5)
    drafts = write_files(deleted.directory, [row(9)], PLAIN)
    async with lake.store.consistent_read() as snapshot:
        await commit_as_engine(lake.store, lake.tables, table, added=drafts)
        await lake.updater.on_refresh(snapshot)
        assert 9 in lake.ids(table)
    await lake.settled()
    assert lake.ids(table) == [2, 4, 5, 9]
    await lake.require_agreement(table)


async def test_reverting_keeps_the_registered_delete_files(deleted: Deletes) -> None:
    lake, table = deleted.lake, deleted.table
    foreign = position_deletes(deleted.directory / "x.parquet", {deleted.files[0].file_path: [1]})
    await _commit_outside(lake, table, foreign.file_path)
    with pytest.raises(TableProblem, match="has delete files, written by another engine"):
        await adopt(lake.store, lake.tables, table)
    await lake.refresh()
    assert "has delete files, written by another engine" in (lake.stopped(table) or "")
    await revert(lake.store, lake.tables, table)
    await lake.refresh()
    assert lake.ids(table) == [2, 4]
    assert lake.stopped(table) is None


async def _commit_outside(lake: Lake, table: LakeTable, path: str) -> None:
    """Commits a delete file past the registry, as over JDBC: the stamp stays what it was."""
    from components.lib.lake.iceberg import SnapshotChange, TableCommit

    local = Path(path.removeprefix("file://"))
    (file,) = await lake.store.list_files(table.id, limit=1)

    def build(draft: TableCommit) -> None:
        entry = position_deletes(local, {file.file_path: [1]})
        draft.add_snapshot(SnapshotChange(deletes_added=[entry]), {1: PLAIN})
        stamp = dict(draft.table.metadata.properties)
        draft.set_stamp(draft.stamp.position)
        draft.set_properties({name: value for name, value in stamp.items() if name.startswith("astha.")})

    lake.tables.commit(table, build)
