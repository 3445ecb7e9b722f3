"""Breaks everything that can be broken: verify reports it with its cause and the repairing command."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform

from components.commands.verify.report import DifferenceKind
from components.commands.verify.verification import Verification
from components.iceberg_updater.external_commits import revert
from components.lib.lake.iceberg import IcebergTables, TableCommit, TableProblem, data_files
from registry.inputs import SnapshotDraft
from registry.models import LakeTable
from tests.integration.components.commands.verify.conftest import Stage, kinds, only, path_of
from tests.lake import table_schema


@pytest.fixture
async def table(stage: Stage) -> LakeTable:
    """Two files with two rows each, committed to Iceberg."""
    made = await stage.create()
    await stage.insert(made)
    await stage.insert(made)
    await stage.commit()
    return made


async def test_equal(stage: Stage, table: LakeTable) -> None:
    partitioned = await stage.create("parts", partition=[(2, IdentityTransform(), "name")])
    await stage.insert(partitioned, 5)
    empty = await stage.create("empty")
    await stage.commit()
    report = await stage.verify(checksums=True)
    assert report.equal
    assert [found.table for found in report.tables] == ["shop.empty", "shop.orders", "shop.parts"]
    orders = report.tables[1]
    assert (orders.files, orders.rows, orders.objects_checked) == (2, 4, 2)
    assert orders.bytes_checked == orders.size_bytes
    assert orders.snapshot == stage.load(table).metadata.current_snapshot_id
    assert (await stage.verify(empty)).equal


async def test_an_empty_registry(stage: Stage) -> None:
    assert (await stage.verify()).equal


async def test_a_data_file_was_deleted(stage: Stage, table: LakeTable) -> None:
    (file,) = await stage.store.list_files(table.id, limit=1)
    path_of(file).unlink()
    assert (await stage.verify()).equal  # files were not checked
    found = only(await stage.verify(files=True))
    assert (found.kind, found.items) == (DifferenceKind.FILE_MISSING, [file.file_path])
    assert "deleted" in found.cause.reason


async def test_a_data_file_was_truncated(stage: Stage, table: LakeTable) -> None:
    (file,) = await stage.store.list_files(table.id, limit=1)
    path_of(file).write_bytes(path_of(file).read_bytes()[:-10])
    found = only(await stage.verify(files=True))
    assert found.kind == DifferenceKind.FILE_SIZE
    assert f"registered with {file.file_size:,}" in found.items[0]


async def test_a_data_file_has_another_content(stage: Stage, table: LakeTable) -> None:
    (file,) = await stage.store.list_files(table.id, limit=1)
    content = bytearray(path_of(file).read_bytes())
    content[len(content) // 2] ^= 1
    path_of(file).write_bytes(content)
    assert (await stage.verify(files=True)).equal
    found = only(await stage.verify(checksums=True))
    assert found.kind == DifferenceKind.CHECKSUM
    assert file.file_path in found.items[0]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tables SET row_count = row_count + 1",
        "UPDATE table_stats SET total_size = 0",
        "UPDATE tables SET file_count = 7",
        "DELETE FROM table_stats",
    ],
)
async def test_statistics_are_wrong(stage: Stage, table: LakeTable, statement: str) -> None:
    stage.execute(statement)
    found = only(await stage.verify())
    assert found.kind == DifferenceKind.STATISTICS
    assert found.cause.repair == "`astha verify --repair-statistics shop.orders`"
    repaired = await stage.verify(repair_statistics=True)
    assert repaired.equal
    assert repaired.tables[0].statistics_repaired
    assert (await stage.verify()).equal


async def test_a_row_was_deleted_by_hand_while_no_daemon_ran(stage: Stage, table: LakeTable) -> None:
    (file,) = await stage.store.list_files(table.id, limit=1)
    stage.execute(f"DELETE FROM table_files WHERE id = {file.id}")
    report = await stage.verify(files=True)
    assert kinds(report) == {DifferenceKind.STATISTICS, DifferenceKind.NOT_REGISTERED}
    extra = report.tables[0].differences[1]
    assert file.file_path in extra.items[0]
    assert "behind by 1" in extra.cause.reason
    assert "no daemon runs" in extra.cause.reason
    assert "`astha run`" in (extra.cause.repair or "")


async def test_a_row_was_changed_by_hand(stage: Stage, table: LakeTable) -> None:
    stage.execute("UPDATE table_files SET row_count = 3")
    report = await stage.verify()
    assert kinds(report) == {DifferenceKind.STATISTICS, DifferenceKind.DESCRIBED_DIFFERENTLY}
    assert "3 rows" in report.tables[0].differences[1].items[0]
    assert "2 rows" in report.tables[0].differences[1].items[0]


async def test_another_engine_has_appended(stage: Stage, table: LakeTable) -> None:
    rows = pa.Table.from_pylist([{"id": 99, "name": None, "day": None}], table_schema().arrow())
    stage.load(table).append(rows, snapshot_properties={"engine-name": "acme", "engine-version": "4.2"})
    added = stage.load(table).metadata.current_snapshot_id
    report = await stage.verify()
    assert kinds(report) == {DifferenceKind.EXTERNAL_COMMIT, DifferenceKind.NOT_REGISTERED}
    external, extra = report.tables[0].differences
    assert external.items == [f"snapshot {added}, append by acme 4.2 (1 files added)"]
    assert len(extra.items) == 1
    for found in (external, extra):
        assert "astha iceberg adopt shop.orders" in (found.cause.repair or "")
        assert "astha iceberg revert shop.orders" in (found.cause.repair or "")


async def test_another_engine_has_deleted(stage: Stage, table: LakeTable) -> None:
    stage.load(table).delete("id = 0")  # rewrites one file
    report = await stage.verify()
    assert kinds(report) == {
        DifferenceKind.EXTERNAL_COMMIT,
        DifferenceKind.NOT_REGISTERED,
        DifferenceKind.NOT_COMMITTED,
    }
    assert "overwrite by an unnamed engine" in report.tables[0].differences[0].items[-1]


async def test_another_engine_has_changed_the_schema(stage: Stage, table: LakeTable) -> None:
    with stage.load(table).update_schema() as update:
        update.rename_column("name", "title")
    report = await stage.verify()
    assert kinds(report) == {DifferenceKind.EXTERNAL_COMMIT, DifferenceKind.SCHEMA}
    assert "title" in report.tables[0].differences[1].items[0]


async def test_another_engine_has_added_a_file_again(stage: Stage, table: LakeTable) -> None:
    loaded = stage.load(table)
    again = next(data_files(loaded))
    with loaded.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(again)
    report = await stage.verify()
    assert kinds(report) == {DifferenceKind.EXTERNAL_COMMIT, DifferenceKind.TWICE}
    assert report.tables[0].differences[1].items == [again.file_path]
    with pytest.raises(TableProblem, match="twice: drop the table from the catalog"):
        await revert(stage.store, stage.tables, table)
    stage.tables.catalog.drop_table(("shop", "orders"))
    await stage.commit()
    assert (await stage.verify()).equal


async def test_registered_and_never_committed(stage: Stage, table: LakeTable) -> None:
    (file,) = await stage.insert(table)
    await stage.remove_one(table)
    found = await stage.verify()
    assert kinds(found) == {DifferenceKind.NOT_COMMITTED, DifferenceKind.NOT_REGISTERED}
    assert file.file_path in found.tables[0].differences[0].items[0]
    assert "behind by 2" in found.tables[0].differences[0].cause.reason


async def test_the_updater_has_passed_a_file_that_iceberg_lacks(stage: Stage, table: LakeTable) -> None:
    await stage.insert(table)
    await stage.write_ledger("live", await stage.store.position())
    found = only(await stage.verify())
    assert found.kind == DifferenceKind.NOT_COMMITTED
    if stage.url.startswith("sqlite"):  # PostgreSQL's position moves on by the ledger's own row
        assert "has passed this" in found.cause.reason
        assert found.cause.repair == "`astha run`, then `astha refresh iceberg_updater`"


@pytest.mark.parametrize(
    ("state", "repair"), [("broken", "`astha run`"), ("paused", "`astha run`, then `astha resume iceberg_updater`")]
)
async def test_the_updaters_state_is_shown(stage: Stage, table: LakeTable, state: str, repair: str) -> None:
    await stage.insert(table)
    await stage.write_ledger(state, None, "the catalog is full")
    found = only(await stage.verify())
    assert f"{state}, and no daemon runs now, owes a refresh (the catalog is full)" in found.cause.reason
    assert repair in (found.cause.repair or "")


async def test_there_was_never_an_updater(stage: Stage) -> None:
    await stage.insert(await stage.create())
    found = only(await stage.verify())
    assert found.kind == DifferenceKind.NO_ICEBERG_TABLE
    assert "subscriptions.yaml" in (found.cause.repair or "")


async def test_the_iceberg_table_was_dropped(stage: Stage, table: LakeTable) -> None:
    stage.tables.catalog.drop_table(("shop", "orders"))
    found = only(await stage.verify(table))
    assert found.kind == DifferenceKind.NO_ICEBERG_TABLE
    await stage.commit()
    assert (await stage.verify()).equal


async def test_the_stamp_is_wrong(stage: Stage, table: LakeTable) -> None:
    with stage.load(table).transaction() as change:
        change.set_properties({"astha.digest": f"{7:064x}"})
    found = only(await stage.verify())
    assert found.kind == DifferenceKind.STAMP
    assert "astha iceberg revert shop.orders" in (found.cause.repair or "")


async def test_the_table_is_stopped(stage: Stage, table: LakeTable) -> None:
    stage.tables.commit(table, lambda commit: commit.stop("column day can't be dropped"))
    found = only(await stage.verify())
    assert (found.kind, found.items) == (DifferenceKind.STOPPED, ["column day can't be dropped"])
    assert "astha refresh iceberg_updater" in (found.cause.repair or "")


async def test_manifests_are_missing(stage: Stage, table: LakeTable) -> None:
    loaded = stage.load(table)
    snapshot = loaded.metadata.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(loaded.io):
        loaded.io.delete(manifest.manifest_path)
    found = only(await stage.verify())
    assert found.kind == DifferenceKind.UNREADABLE
    assert "drop the table from the catalog" in (found.cause.repair or "")
    stage.tables.catalog.drop_table(("shop", "orders"))
    await stage.commit()
    assert (await stage.verify()).equal


async def test_iceberg_metadata_is_missing(stage: Stage, table: LakeTable) -> None:
    shutil.rmtree(path_of_metadata(stage.tables, table))
    report = await stage.verify()
    assert kinds(report) == {DifferenceKind.UNREADABLE}
    assert "astha refresh iceberg_updater" in report.tables[0].differences[0].items[0]


def path_of_metadata(tables: IcebergTables, table: LakeTable) -> str:
    loaded = tables.load(table)
    assert loaded is not None
    return loaded.metadata_location.removeprefix("file://").rpartition("/")[0]


async def test_a_table_that_the_registry_no_longer_has(stage: Stage, table: LakeTable) -> None:
    await stage.store.drop_table(table.id)
    report = await stage.verify()
    found = only(report)
    assert (found.kind, found.items) == (DifferenceKind.NO_REGISTRY_TABLE, ["shop.orders"])
    await stage.commit()
    assert (await stage.verify()).equal


async def test_a_name_reused_after_a_drop(stage: Stage, table: LakeTable) -> None:
    await stage.store.drop_table(table.id)
    await stage.insert(await stage.create())
    report = await stage.verify()
    assert kinds(report) == {DifferenceKind.NO_ICEBERG_TABLE}
    assert [found.kind for found in report.elsewhere] == [DifferenceKind.NO_REGISTRY_TABLE]
    assert "`astha run`" in (report.tables[0].differences[0].cause.repair or "")
    await stage.commit()
    assert (await stage.verify()).equal


async def test_a_name_taken_by_an_unknown_table(stage: Stage, table: LakeTable) -> None:
    stage.tables.catalog.drop_table(("shop", "orders"))
    stage.tables.catalog.create_table(("shop", "orders"), table_schema().iceberg, location=f"{table.location}/other")
    found = only(await stage.verify(table))
    assert found.kind == DifferenceKind.UNREADABLE
    assert "not Astha's: rename or drop one of them" in found.items[0]
    assert found.cause.repair is None


async def test_the_schema_is_behind(stage: Stage, table: LakeTable) -> None:
    await stage.store.add_schema_version(table.id, table_schema().draft(), expected=1)
    found = only(await stage.verify())
    assert (found.kind, found.items) == (DifferenceKind.SCHEMA, ["Iceberg has version 1, the registry version 2"])


async def test_other_formats_are_checked_without_iceberg(stage: Stage) -> None:
    table = await stage.create("lines", format="json")
    (file,) = await stage.insert(table)
    await stage.commit()
    report = await stage.verify(checksums=True)
    assert report.equal
    assert report.tables[0].digest is None
    path_of(file).unlink()
    stage.execute("UPDATE tables SET row_count = 0")
    assert kinds(await stage.verify(files=True)) == {DifferenceKind.STATISTICS, DifferenceKind.FILE_MISSING}


async def test_snapshots_and_tags_differ(stage: Stage, table: LakeTable) -> None:
    await stage.insert(table)
    await stage.commit()
    current = stage.load(table).metadata.current_snapshot_id
    assert current is not None
    rows = {
        tag: await stage.store.record_snapshot(table.id, SnapshotDraft(snapshot_id=current, timestamp=1, tag=tag))
        for tag in ("good", "lost", "moved")
    }

    def tag(commit: TableCommit) -> None:
        for name, row_id in (("good", rows["good"].id), ("forgotten", 99)):
            commit.set_tag(name, current)
            commit.set_properties({f"astha.tag.{name}": f"{row_id} {current}"})
        commit.set_tag("moved", before)
        commit.set_tag("not-ours", current)

    before = stage.load(table).metadata.snapshots[0].snapshot_id
    assert before != current
    stage.tables.commit(table, tag)
    (report,) = (await stage.verify()).tables
    found = {difference.kind: difference for difference in report.differences}
    assert set(found) == {DifferenceKind.SNAPSHOT_LOST, DifferenceKind.TAG_UNKNOWN}
    assert found[DifferenceKind.SNAPSHOT_LOST].items == [
        f"lost, snapshot {current} (row {rows['lost'].id}): Iceberg has no such tag",
        f"moved, snapshot {current} (row {rows['moved'].id}): in Iceberg the tag names snapshot {before}",
    ]
    assert found[DifferenceKind.TAG_UNKNOWN].items == [
        f"forgotten, snapshot {current}, of row 99: the registry has no such row"
    ]
    assert "astha snapshot expire shop.orders" in (found[DifferenceKind.SNAPSHOT_LOST].cause.repair or "")


async def test_tags_of_a_concurrently_dropped_table_are_no_difference(
    stage: Stage, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows disappear at once, its Iceberg table a moment later."""
    await stage.insert(table)
    await stage.commit()
    current = stage.load(table).metadata.current_snapshot_id
    assert current is not None
    row = await stage.store.record_snapshot(table.id, SnapshotDraft(snapshot_id=current, timestamp=1, tag="good"))

    def tag(commit: TableCommit) -> None:
        commit.set_tag("good", current)
        commit.set_properties({"astha.tag.good": f"{row.id} {current}"})

    stage.tables.commit(table, tag)
    check = Verification._check_tags

    async def dropped_first(verification: Verification, checked: LakeTable) -> None:
        await stage.store.drop_table(checked.id)
        await check(verification, checked)

    monkeypatch.setattr(Verification, "_check_tags", dropped_first)
    (report,) = (await stage.verify(table)).tables
    assert report.differences == []


async def test_the_states_of_a_snapshot_on_its_way_are_no_differences(stage: Stage, table: LakeTable) -> None:
    current = stage.load(table).metadata.current_snapshot_id
    assert current is not None
    requested = await stage.store.request_snapshot(table.id, tag="asked")
    expiring = await stage.store.record_snapshot(
        table.id,
        SnapshotDraft(snapshot_id=current, timestamp=1, tag="old", status="expired", manifest_list="file:///x"),
    )

    def tag(commit: TableCommit) -> None:
        for name, row_id in (("asked", requested.id), (f"astha-expiring-{expiring.id}", expiring.id)):
            commit.set_tag(name, current)
            commit.set_properties({f"astha.tag.{name}": f"{row_id} {current}"})

    stage.tables.commit(table, tag)
    assert (await stage.verify()).equal
