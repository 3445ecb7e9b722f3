from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import (
    BadFile,
    ForeignCommit,
    IcebergTables,
    RegistryCatalog,
    Retention,
    SnapshotChange,
    Stamp,
    TableCommit,
    live_digest,
    live_files,
)
from components.lib.lake.iceberg.commits import FilesMissing
from components.lib.lake.iceberg.manifests import MERGE_COUNT, live_count
from components.lib.lake.schema.table_schema import TableSchema
from registry.models import LakeTable, TableFile
from registry.position import Position
from tests.delete_files import position_deletes
from tests.parquet_files import BY_DAY, BY_NAME, PLAIN, as_row, row, write_file, write_files

DAY = datetime(2024, 5, 1, tzinfo=UTC)


def commit(
    tables: IcebergTables,
    table: LakeTable,
    *changes: SnapshotChange,
    schema: TableSchema = PLAIN,
    position: int | None = 1,
    retention: Retention | None = None,
) -> Table:
    """Commits each change as one snapshot, all in one commit."""
    tables.ensure(table, schema)

    def build(draft: TableCommit) -> None:
        draft.require_own()
        for change in changes:
            draft.add_snapshot(change, {schema.version: schema}, None if position is None else Position(position))
        draft.set_stamp(None if position is None else Position(position))
        draft.retain(retention or Retention())

    tables.commit(table, build)
    loaded = tables.load(table)
    assert loaded is not None
    return loaded


def live(files: list[TableFile]) -> list[LiveFile]:
    return [LiveFile.of(file) for file in files]


def digest_of(files: list[TableFile]) -> Digest:
    digest = Digest()
    for file in live(files):
        digest.add(file)
    return digest


@pytest.fixture
def data(warehouse: Path) -> Path:
    return warehouse / "orders" / "data"


def test_appended_files_can_be_read_and_are_stamped(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    files = [as_row(write_file(data, [row(1, "a"), row(2)])), as_row(write_file(data, [row(3, "c")]))]
    loaded = commit(tables, table, SnapshotChange(files), position=5)
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    stamp = Stamp.read(loaded.metadata)
    assert stamp == Stamp(digest_of(files), loaded.metadata.current_snapshot_id, Position(5))
    assert live_digest(loaded) == stamp.digest
    summary = loaded.metadata.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary.operation is Operation.APPEND
    assert summary["astha.position"] == "5"
    assert summary["total-records"] == "3"
    assert summary["added-data-files"] == "2"


def test_removed_files_are_gone(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    files = [as_row(write_file(data, [row(number)])) for number in range(4)]
    commit(tables, table, SnapshotChange(files))
    loaded = commit(tables, table, SnapshotChange(removed=live(files[1:3])), position=2)
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == [0, 3]
    assert live_digest(loaded) == Stamp.read(loaded.metadata).digest == digest_of([files[0], files[3]])
    assert loaded.current_snapshot().summary.operation is Operation.DELETE  # type: ignore[union-attr]


def test_several_snapshots_are_one_commit(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    small = [as_row(write_file(data, [row(number)])) for number in range(3)]
    large = as_row(write_file(data, [row(number) for number in range(3)]))
    before = tables.ensure(table, PLAIN).metadata_location
    loaded = commit(
        tables,
        table,
        SnapshotChange(small),
        SnapshotChange([large], live(small), replaces=True),
        SnapshotChange(removed=live([large])),
    )
    operations = [snapshot.summary.operation for snapshot in loaded.metadata.snapshots if snapshot.summary]
    assert operations == [Operation.APPEND, Operation.REPLACE, Operation.DELETE]
    assert [entry.metadata_file for entry in loaded.metadata.metadata_log] == [before]
    ids = [snapshot.snapshot_id for snapshot in loaded.metadata.snapshots]
    assert [snapshot.parent_snapshot_id for snapshot in loaded.metadata.snapshots] == [None, *ids[:-1]]
    assert [loaded.scan(snapshot_id=known).to_arrow().num_rows for known in ids] == [3, 3, 0]
    assert Stamp.read(loaded.metadata).digest == Digest()


def test_bounds_let_readers_skip_files(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    files = [as_row(write_file(data, [row(number * 10), row(number * 10 + 9)])) for number in range(10)]
    loaded = commit(tables, table, SnapshotChange(files))
    tasks = list(loaded.scan(row_filter="id > 85").plan_files())
    assert [task.file.file_path for task in tasks] == [files[8].file_path, files[9].file_path]


def test_partitions_are_pruned(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    rows = [row(number, at=DAY + timedelta(days=number)) for number in range(5)]
    files = [as_row(draft) for draft in write_files(data, rows, BY_DAY)]
    loaded = commit(tables, table, SnapshotChange(files), schema=BY_DAY)
    tasks = list(loaded.scan(row_filter=f"at = '{(DAY + timedelta(days=3)).isoformat()}'").plan_files())
    assert [task.file.file_path for task in tasks] == [files[3].file_path]
    assert {file.partition_path for file in live_files(loaded)} == {f"at_day=2024-05-0{day}" for day in range(1, 6)}


def test_files_of_older_versions_keep_their_partition_spec(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    newer = TableSchema(2, BY_NAME.iceberg, BY_NAME.partition, BY_NAME.order)
    old = [as_row(draft) for draft in write_files(data, [row(1, "a", DAY)], BY_DAY)]
    new = [as_row(draft) for draft in write_files(data, [row(2, "b", DAY)], newer)]
    tables.ensure(table, BY_DAY)

    def build(draft: TableCommit) -> None:
        draft.evolve(newer)
        draft.add_snapshot(SnapshotChange(old + new), {1: BY_DAY, 2: newer})
        draft.set_stamp(None)

    tables.commit(table, build)
    loaded = tables.load(table)
    assert loaded is not None
    assert {file.partition_path for file in live_files(loaded)} == {"at_day=2024-05-01", "name=b"}
    assert live_digest(loaded) == digest_of(old + new)
    assert [field.name for field in loaded.spec().fields] == ["name"]
    assert pc.sum(loaded.scan().to_arrow()["id"]).as_py() == 3


def test_manifests_are_merged_and_found_again(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    draft = write_file(data, [row(1)])
    files = [as_row(write_file(data, [row(number)], name=f"{number}.parquet")) for number in range(MERGE_COUNT * 2 + 3)]
    for number, file in enumerate(files):
        loaded = commit(tables, table, SnapshotChange([file]), position=number)
    manifests = loaded.current_snapshot().manifests(loaded.io)  # type: ignore[union-attr]
    assert len(manifests) <= MERGE_COUNT + 2
    assert max(map(live_count, manifests)) >= MERGE_COUNT
    assert live_digest(loaded) == digest_of(files)
    loaded = commit(tables, table, SnapshotChange([as_row(draft)], live(files[::2]), replaces=True), position=99)
    assert live_digest(loaded) == digest_of([as_row(draft), *files[1::2]])


def test_removing_a_missing_file_fails(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    commit(tables, table, SnapshotChange([as_row(write_file(data, [row(1)]))]))
    metadata = sorted((data.parent / "metadata").iterdir())
    stranger = as_row(write_file(data, [row(2)]))
    with pytest.raises(FilesMissing, match=r"00001\.parquet should be removed"):
        commit(tables, table, SnapshotChange(removed=live([stranger])))
    assert sorted((data.parent / "metadata").iterdir()) == metadata


def test_a_foreign_commit_is_detected(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    loaded = commit(tables, table, SnapshotChange([as_row(write_file(data, [row(1)]))]))
    loaded.append(loaded.scan().to_arrow())
    with pytest.raises(ForeignCommit, match="astha iceberg adopt"):
        commit(tables, table, SnapshotChange([as_row(write_file(data, [row(2)]))]))


def test_a_commit_is_built_again_after_a_conflict(
    tables: IcebergTables, other: IcebergTables, table: LakeTable, data: Path
) -> None:
    """A tag is not a foreign commit: the second attempt starts from the newest metadata."""
    first = commit(tables, table, SnapshotChange([as_row(write_file(data, [row(1)]))]))
    tries: list[int | None] = []

    def build(draft: TableCommit) -> None:
        tries.append(draft.table.metadata.current_snapshot_id)
        if len(tries) == 1:
            other.commit(table, lambda its: its.set_tag("mine", first.metadata.current_snapshot_id or 0))
        draft.require_own()
        draft.add_snapshot(SnapshotChange([as_row(write_file(data, [row(2)]))]), {1: PLAIN})
        draft.set_stamp(Position(2))

    # Two handles of one process share the lock; the other here plays another process.
    tables.catalog.properties["uri"] = "elsewhere"
    tables.commit(table, build)
    loaded = tables.load(table)
    assert loaded is not None
    assert len(tries) == 2
    assert set(loaded.metadata.refs) == {"main", "mine"}
    assert loaded.scan().to_arrow().num_rows == 2
    referred = {str(path) for path in (data.parent / "metadata").glob("snap-*")}
    assert len(referred) == 2, "what the first attempt wrote was removed"


def test_old_snapshots_expire_and_tags_stay(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    retention = Retention(max_snapshots=10)
    unreferenced: list[str] = []

    def tag_current(draft: TableCommit) -> None:
        draft.set_tag("early", draft.table.metadata.current_snapshot_id or 0)

    for number in range(40):
        file = as_row(write_file(data, [row(number)], name=f"{number}.parquet"))

        def build(draft: TableCommit, file: TableFile = file, number: int = number) -> None:
            draft.add_snapshot(SnapshotChange([file]), {1: PLAIN})
            draft.set_stamp(Position(number))
            draft.retain(retention)

        tables.ensure(table, PLAIN)
        done = tables.commit(table, build)
        assert done is not None
        unreferenced += done.unreferenced
        if number == 4:
            tables.commit(table, tag_current)
    loaded = tables.load(table)
    assert loaded is not None
    assert len(loaded.metadata.snapshots) <= 12
    assert loaded.scan(snapshot_id=loaded.metadata.refs["early"].snapshot_id).to_arrow().num_rows == 5
    for path in unreferenced:
        loaded.io.delete(path)
    kept = [loaded.scan(snapshot_id=known.snapshot_id).to_arrow().num_rows for known in loaded.metadata.snapshots]
    assert kept[0] == 5
    assert kept[1:] == list(range(42 - len(kept), 41))
    metadata = {path.name for path in (data.parent / "metadata").glob("*.avro")}
    needed = {
        name.rpartition("/")[2]
        for known in loaded.metadata.snapshots
        for name in (known.manifest_list, *(manifest.manifest_path for manifest in known.manifests(loaded.io)))
    }
    assert metadata == needed, "nothing is left that no snapshot needs"


def test_manifests_that_a_rollback_restored_are_kept(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    """A manifest of the first snapshot is missing in the second and present in the third: it must not be deleted."""
    file = as_row(write_file(data, [row(1)]))
    first = commit(tables, table, SnapshotChange([file])).metadata.current_snapshot_id
    second = commit(tables, table, SnapshotChange([as_row(write_file(data, [row(2)]))], live([file])), position=2)
    assert first is not None
    second.manage_snapshots().rollback_to_snapshot(first).commit()

    def go_on(draft: TableCommit) -> None:
        draft.restart_digest(digest_of([file]))
        draft.add_snapshot(SnapshotChange([as_row(write_file(data, [row(3)]))]), {1: PLAIN})
        draft.set_stamp(None)

    tables.commit(table, go_on)
    done = tables.commit(table, lambda draft: draft.expire([first]))
    assert done is not None
    loaded = tables.load(table)
    assert loaded is not None
    for path in done.unreferenced:
        loaded.io.delete(path)
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == [1, 3]


def test_a_table_property_limits_the_age_of_snapshots(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    commit(tables, table, SnapshotChange([as_row(write_file(data, [row(1)]))]))
    tables.commit(table, lambda draft: draft.set_properties({"history.expire.max-snapshot-age-ms": "0"}))
    for number in range(2, 4):
        loaded = commit(tables, table, SnapshotChange([as_row(write_file(data, [row(number)]))]), position=number)
    assert len(loaded.metadata.snapshots) == 2
    assert loaded.scan().to_arrow().num_rows == 3


def test_statistics_come_from_the_footer_if_the_row_has_none(
    tables: IcebergTables, table: LakeTable, data: Path
) -> None:
    files = [as_row(write_file(data, [row(number)], statistics=False)) for number in range(3)]
    loaded = commit(tables, table, SnapshotChange(files))
    assert [task.file.file_path for task in loaded.scan(row_filter="id = 1").plan_files()] == [files[1].file_path]


def test_a_file_that_can_not_be_read_is_named(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    file = as_row(write_file(data, [row(1)], statistics=False))
    (data / "00000.parquet").write_bytes(b"nothing")
    with pytest.raises(BadFile, match=r"00000\.parquet has no statistics"):
        commit(tables, table, SnapshotChange([file]))


def test_a_refresh_removes_the_position(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    commit(tables, table, SnapshotChange([as_row(write_file(data, [row(1)]))]), position=9)
    loaded = commit(tables, table, position=None)
    assert Stamp.read(loaded.metadata).position is None
    assert not Stamp.read(loaded.metadata).covers(Position(1))
    assert len(loaded.metadata.snapshots) == 1


class TestMetadataFile:
    def test_it_says_what_pyiceberg_would_have_written(
        self, tables: IcebergTables, table: LakeTable, data: Path
    ) -> None:
        """Snapshots are serialized once, the rest by every commit; a property looks like the insertion point."""
        assert isinstance(tables.catalog, RegistryCatalog)
        for turn in range(5):
            files = [as_row(write_file(data, [row(turn)]))]
            loaded = commit(tables, table, SnapshotChange(files), position=turn, retention=Retention(2))
            trap = {"trap": '"snapshots":[]', "turn": str(turn)}
            tables.commit(table, partial(TableCommit.set_properties, properties=trap))
            assert loaded.metadata.properties["turn"] == str(turn)
            written = Path(loaded.metadata_location.removeprefix("file://")).read_text()
            assert written == loaded.metadata.model_dump_json(exclude_none=True)
        assert len(loaded.metadata.snapshots) < 5  # some have expired on the way


def test_delete_files_survive_further_commits(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    files = [as_row(write_file(data, [row(number * 2), row(number * 2 + 1)])) for number in range(MERGE_COUNT + 2)]
    deletes = position_deletes(data / "deletes.parquet", {files[0].file_path: [1], files[1].file_path: [0]})
    commit(tables, table, SnapshotChange(files[:2]))
    commit(tables, table, SnapshotChange(deletes_added=[deletes]), position=2)
    for number, file in enumerate(files[2:], 3):
        commit(tables, table, SnapshotChange([file]), position=number)  # manifests of data files are merged meanwhile
    loaded = commit(tables, table, SnapshotChange(removed=live(files[1:2])), position=50)
    left = [0, *range(4, 2 * len(files))]
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == left
    summary = loaded.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary["total-delete-files"], summary["total-position-deletes"]) == ("1", "2")
    assert summary["total-equality-deletes"] == "0"


def test_a_swap_removes_delete_files_with_their_data_files(tables: IcebergTables, table: LakeTable, data: Path) -> None:
    files = [as_row(write_file(data, [row(number * 2), row(number * 2 + 1)])) for number in range(3)]
    first = position_deletes(data / "d1.parquet", {files[0].file_path: [1]})
    second = position_deletes(data / "d2.parquet", {files[2].file_path: [0]})
    commit(tables, table, SnapshotChange(files))
    commit(tables, table, SnapshotChange(deletes_added=[first, second]), position=2)
    merged = as_row(write_file(data, [row(0), row(2), row(3)]))
    swap = SnapshotChange([merged], live(files[:2]), replaces=True, deletes_removed=[first.file_path])
    loaded = commit(tables, table, swap, position=3)
    assert sorted(loaded.scan().to_arrow()["id"].to_pylist()) == [0, 2, 3, 5]
    summary = loaded.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert summary.operation is Operation.REPLACE
    assert (summary["removed-delete-files"], summary["total-delete-files"]) == ("1", "1")
    assert summary["total-position-deletes"] == "1"
    with pytest.raises(FilesMissing, match=r"the delete file .*d1"):
        commit(tables, table, SnapshotChange(deletes_removed=[first.file_path]), position=4)


def test_files_staged_in_portions_are_one_snapshot_also_after_a_conflict(
    tables: IcebergTables, other: IcebergTables, table: LakeTable, data: Path
) -> None:
    old = as_row(write_file(data, [row(0)]))
    loaded = commit(tables, table, SnapshotChange([old]))
    files = [as_row(write_file(data, [row(number)])) for number in range(1, 6)]
    staged = TableCommit(loaded).stage({PLAIN.version: PLAIN}, len(files))
    for part in (files[:2], files[2:4], files[4:]):
        staged.add(part)
    attempts: list[str] = []

    def build(draft: TableCommit) -> None:
        attempts.append(draft.table.metadata_location)
        if len(attempts) == 1:
            other.commit(table, lambda its: its.set_tag("mine", loaded.metadata.current_snapshot_id or 0))
        draft.add_snapshot(SnapshotChange(removed=live([old])), {PLAIN.version: PLAIN}, staged=staged)
        draft.set_stamp(None)

    tables.catalog.properties["uri"] = "elsewhere"  # another lock than the other handle's
    tables.commit(table, build)

    assert len(attempts) == 2
    staged.discard()  # it keeps what was committed
    found = tables.load(table)
    assert found is not None
    assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5]
    assert live_digest(found) == Stamp.read(found.metadata).digest == digest_of(files)
    snapshot = found.current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == staged.snapshot_id
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.OVERWRITE
    assert (snapshot.summary["added-data-files"], snapshot.summary["total-records"]) == ("5", "5")
    added = [one for one in snapshot.manifests(found.io) if one.added_files_count]
    assert [one.added_files_count for one in added] == [2, 2, 1]
    assert {one.sequence_number for one in added} == {snapshot.sequence_number}


def test_staged_files_that_are_not_committed_leave_nothing(
    tables: IcebergTables, table: LakeTable, data: Path, warehouse: Path
) -> None:
    old = as_row(write_file(data, [row(0)]))
    loaded = commit(tables, table, SnapshotChange([old]))
    before = sorted(warehouse.rglob("*.avro"))
    staged = TableCommit(loaded).stage({PLAIN.version: PLAIN}, 1)
    staged.add([as_row(write_file(data, [row(1)]))])

    def build(draft: TableCommit) -> None:
        draft.add_snapshot(SnapshotChange(), {PLAIN.version: PLAIN}, staged=staged)
        raise FilesMissing("something else")

    with pytest.raises(FilesMissing):
        tables.commit(table, build)
    staged.discard()

    assert sorted(warehouse.rglob("*.avro")) == before
