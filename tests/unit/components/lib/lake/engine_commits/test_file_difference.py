"""With manifests that PyIceberg has written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from components.lib.lake.engine_commits import InvalidCommit, ManifestLists, UnreadableFiles, read_difference
from components.lib.lake.engine_commits.iceberg_metadata import StoredSnapshot
from components.lib.lake.file_set_digest import Digest
from components.lib.lake.iceberg import live_digest
from registry.inputs import validate
from tests.unit.components.lib.lake.engine_commits.lake import (
    SCHEMA,
    difference,
    live_paths,
    metadata_of,
    rows,
    warehouse,
)

pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")

BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    with warehouse(tmp_path) as opened:
        yield opened


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table("shop.orders", SCHEMA, partition_spec=BY_REGION)


def current(table: Table) -> int:
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def test_an_append_has_drafts_with_statistics(table: Table) -> None:
    table.append(rows(1, 2, region="a b"))
    found = difference(table, None)
    (draft,) = found.drafts({0: 4}, 9)
    assert draft.partition_path == "region=a%20b"
    assert (draft.row_count, draft.schema_version, draft.file_type) == (2, 4, "parquet")
    assert {draft.file_path} == live_paths(table)
    assert draft.file_size == Path(draft.file_path.removeprefix("file://")).stat().st_size
    statistics = msgspec.json.decode(str(draft.column_stats))
    assert statistics["1"]["value_count"] == 2
    assert set(statistics) == {"1", "2"}
    validate([draft])
    assert found.drafts({}, 9)[0].schema_version == 9
    assert (found.removed, found.deletes_added, found.deletes_removed) == ([], [], [])


def test_the_same_snapshot_and_none_have_no_difference(table: Table) -> None:
    table.append(rows(1))
    assert difference(table, current(table)).is_empty
    assert read_difference(table.io, metadata_of(table), None, None).is_empty


def test_delete_and_overwrite(table: Table) -> None:
    table.append(rows(1, region="north"))
    table.append(rows(2, 3, region="south"))
    before, old = live_paths(table), current(table)
    table.overwrite(rows(4, region="south"), overwrite_filter="id = 2")
    found = difference(table, old)
    assert {entry.live.path for entry in found.added} == live_paths(table) - before
    assert {file.path for file in found.removed} == before - live_paths(table)
    assert len(found.removed) == 1
    middle = current(table)
    table.delete("region = 'north'")
    assert [file.partition_path for file in difference(table, middle).removed] == ["region=north"]


def test_entries_of_a_rewritten_manifest_are_no_difference(table: Table) -> None:
    table.append(pa.concat_tables([rows(1, region="north"), rows(2, region="south")]))
    old = current(table)
    table.delete("region = 'north'")
    found = difference(table, old)
    assert not found.added
    assert [file.partition_path for file in found.removed] == ["region=north"]


def test_a_rollback_reverses_the_difference(table: Table) -> None:
    table.append(rows(1))
    first = current(table)
    table.append(rows(2))
    second = current(table)
    forward, back = difference(table, first, second), difference(table, second, first)
    assert [entry.live for entry in forward.added] == back.removed
    assert not back.added


def test_a_snapshot_on_a_branch_becomes_part_of_main(table: Table) -> None:
    table.append(rows(1))
    first = current(table)
    table.manage_snapshots().create_branch(first, "audit").commit()
    table.append(rows(2), branch="audit")
    assert difference(table, first).is_empty
    staged = metadata_of(table).refs["audit"].snapshot_id
    assert [entry.live.rows for entry in difference(table, first, staged).added] == [1]


def test_only_manifests_of_one_side_are_read(table: Table) -> None:
    for number in range(3):
        table.append(rows(number))
    old = current(table)
    shared = {manifest.manifest_path for manifest in table.current_snapshot().manifests(table.io)}  # type: ignore[union-attr]
    table.append(rows(9))
    for path in shared:
        Path(path.removeprefix("file://")).unlink()
    assert len(difference(table, old).added) == 1


def test_partition_paths_of_all_specs(table: Table) -> None:
    table.append(rows(1))
    with table.update_spec() as update:
        update.remove_field("region")
        update.add_field("id", IdentityTransform(), "number")
    table.append(rows(2))
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("region")
    table.append(rows(3).select(["id"]))
    found = difference(table, None)
    assert found.spec_ids == {0, 1}
    paths = {draft.partition_path.partition("=")[0] for draft in found.drafts({0: 1, 1: 2}, 2)}
    assert paths == {"region", "number"}
    assert {draft.schema_version for draft in found.drafts({0: 1, 1: 2}, 2)} == {1, 2}


def test_the_digest_follows(table: Table) -> None:
    digest, old = Digest(), None
    random = Random(18)
    for number in range(12):
        match random.choice(["append", "append", "overwrite", "delete"]):
            case "append":
                table.append(rows(number, number + 1, region=random.choice("ab")))
            case "overwrite":
                table.overwrite(rows(number), overwrite_filter=f"region = '{random.choice('ab')}'")
            case _:
                table.delete(f"id in ({number - 1}, {number - 2})")
        if table.metadata.current_snapshot_id is None:
            continue
        found = difference(table, old)
        digest, old = found.applied_to(digest), current(table)
        assert digest == live_digest(table)


@pytest.mark.parametrize("seed", range(2))
def test_accumulated_differences_are_the_live_files(table: Table, seed: int) -> None:
    """Random commits and rollbacks; each difference is applied to a set, which must equal the live files."""
    random, lists = Random(seed), ManifestLists(max_manifests=20)
    live: set[str] = set()
    old: int | None = None
    for number in range(12):
        snapshots = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
        region = random.choice("abc")
        action = random.choice(["append", "append", "append", "overwrite", "delete", "rollback"])
        if action == "append" or not snapshots:
            table.append(rows(*range(number, number + random.randrange(1, 4)), region=region))
        elif action == "overwrite":
            table.overwrite(rows(number, region=region), overwrite_filter=f"id = {random.randrange(number + 1)}")
        elif action == "delete":
            table.delete(f"region = '{region}'")
        else:
            table.manage_snapshots().set_current_snapshot(snapshot_id=random.choice(snapshots)).commit()
        found = difference(table, old, lists=lists)
        added, removed = {entry.live.path for entry in found.added}, {file.path for file in found.removed}
        assert not added & live
        assert removed <= live
        live = (live | added) - removed
        old = current(table)
        assert live == live_paths(table)


# -- what only other engines write -----------------------------------------------------------------------


def snapshot_of(table: Table, number: int, manifests: list[ManifestFile]) -> StoredSnapshot:
    path = f"{table.location()}/metadata/list-{number}.avro"
    with write_manifest_list(2, table.io.new_output(path), number, None, 7, "deflate") as writer:
        writer.add_manifests(manifests)
    snapshot = {"snapshot-id": number, "timestamp-ms": 1, "sequence-number": 7, "manifest-list": path}
    return StoredSnapshot.parse(msgspec.json.encode(snapshot))


def manifest_of(table: Table, number: int, *files: DataFile) -> ManifestFile:
    path = f"{table.location()}/metadata/manifest-{number}.avro"
    with write_manifest(2, table.spec(), table.schema(), table.io.new_output(path), number, "deflate") as writer:
        for file in files:
            writer.add_entry(
                ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
            )
    made = writer.to_manifest_file()
    made.sequence_number = made.min_sequence_number = 7
    if files[0].content != DataFileContent.DATA:
        made[3] = ManifestContent.DELETES
    return made


def data_file(path: str, **more: object) -> DataFile:
    given: dict[str, object] = {
        "content": DataFileContent.DATA,
        "file_path": path,
        "file_format": FileFormat.PARQUET,
        "partition": Record("north"),
        "record_count": 5,
        "file_size_in_bytes": 100,
    }
    return DataFile.from_args(**{**given, **more})  # type: ignore[arg-type]


def test_delete_files_are_separate(table: Table) -> None:
    equality = data_file("s3://b/e", content=DataFileContent.EQUALITY_DELETES, equality_ids=[1, 2])
    position = data_file("s3://b/p", content=DataFileContent.POSITION_DELETES, record_count=3)
    first = snapshot_of(table, 1, [manifest_of(table, 1, data_file("s3://b/d"))])
    second = snapshot_of(
        table, 2, [manifest_of(table, 1, data_file("s3://b/d")), manifest_of(table, 2, equality, position)]
    )
    found = read_difference(table.io, metadata_of(table), first, second)
    assert not found.added
    assert not found.removed
    by_path = {draft.file_path: draft for draft in found.deletes_added}
    assert (by_path["s3://b/e"].content, by_path["s3://b/e"].equality_ids) == ("equality", "[1,2]")
    assert (by_path["s3://b/p"].content, by_path["s3://b/p"].row_count) == ("position", 3)
    assert (by_path["s3://b/p"].sequence_number, by_path["s3://b/p"].partition_path) == (7, "region=north")
    validate(list(found.deletes_added))
    back = read_difference(table.io, metadata_of(table), second, first)
    assert sorted(back.deletes_removed) == [("s3://b/e", 0), ("s3://b/p", 0)]


def test_data_files_that_deletes_may_name_are_required(table: Table) -> None:
    """A compaction may have replaced them in the registry: then the commit must not succeed."""
    north, south = (
        manifest_of(table, 1, data_file("s3://b/n")),
        manifest_of(table, 2, data_file("s3://b/s", partition=Record("south"))),
    )
    before = snapshot_of(table, 3, [north, south])

    def required(number: int, *deletes: DataFile) -> tuple[list[str], str | None]:
        after = snapshot_of(table, number, [north, south, manifest_of(table, number, *deletes)])
        found = read_difference(table.io, metadata_of(table), before, after)
        return sorted(found.required), found.deletes_added[0].referenced_data_file

    position = partial(data_file, content=DataFileContent.POSITION_DELETES)
    assert required(4, position("s3://b/p")) == (["s3://b/n"], None)
    bounds = {2147483546: b"s3://b/n"}
    assert required(5, position("s3://b/p", lower_bounds=bounds, upper_bounds=bounds)) == ([], "s3://b/n")
    wide = {2147483546: b"s3://b/z"}
    assert required(6, position("s3://b/p", lower_bounds=bounds, upper_bounds=wide)) == (["s3://b/n"], None)
    equality = data_file("s3://b/e", content=DataFileContent.EQUALITY_DELETES, partition=Record("south"))
    assert required(7, equality) == (["s3://b/s"], None)
    rewritten = snapshot_of(
        table, 8, [manifest_of(table, 9, data_file("s3://b/n"), data_file("s3://b/x")), south,
                   manifest_of(table, 8, position("s3://b/p"))],
    )  # fmt: skip
    found = read_difference(table.io, metadata_of(table), before, rewritten)
    assert found.required == ["s3://b/n"], "also in a manifest that was written again; an added file is not required"


def test_files_of_other_formats_have_their_type(table: Table) -> None:
    files = [data_file("s3://b/a", file_format=FileFormat.AVRO), data_file("s3://b/o", file_format=FileFormat.ORC)]
    new = snapshot_of(table, 1, [manifest_of(table, 1, *files)])
    found = read_difference(table.io, metadata_of(table), None, new)
    assert [draft.file_type for draft in found.drafts({}, 1)] == ["avro", "orc"]
    assert found.drafts({}, 1)[0].column_stats is None


def test_a_file_that_appears_twice_is_refused(table: Table) -> None:
    manifests = [manifest_of(table, number, data_file("s3://b/d")) for number in (1, 2)]
    with pytest.raises(InvalidCommit, match="s3://b/d appears twice"):
        read_difference(table.io, metadata_of(table), None, snapshot_of(table, 3, manifests))


def test_an_unknown_partition_spec_is_refused(table: Table) -> None:
    manifest = manifest_of(table, 1, data_file("s3://b/d"))
    manifest[2] = 5
    with pytest.raises(InvalidCommit, match="no partition spec 5"):
        read_difference(table.io, metadata_of(table), None, snapshot_of(table, 1, [manifest]))


def test_a_partition_that_is_too_long_is_refused(table: Table) -> None:
    manifest = manifest_of(table, 1, data_file("s3://b/d", partition=Record("x" * 3000)))
    with pytest.raises(InvalidCommit, match="can't be tracked"):
        read_difference(table.io, metadata_of(table), None, snapshot_of(table, 1, [manifest]))


def test_missing_and_damaged_files(table: Table) -> None:
    manifest = manifest_of(table, 1, data_file("s3://b/d"))
    new = snapshot_of(table, 1, [manifest])
    path = Path(manifest.manifest_path.removeprefix("file://"))
    content = path.read_bytes()
    for damaged in (b"", b"Obj", content[: len(content) // 2], b"\xff" * 500):
        path.write_bytes(damaged)
        with pytest.raises(UnreadableFiles, match=r"manifest-1\.avro"):
            read_difference(table.io, metadata_of(table), None, new)
    path.unlink()
    with pytest.raises(UnreadableFiles, match=r"manifest-1\.avro does not exist"):
        read_difference(table.io, metadata_of(table), None, new)
    old = StoredSnapshot.parse(b'{"snapshot-id": 3, "timestamp-ms": 1}')
    with pytest.raises(InvalidCommit, match="no manifest list"):
        read_difference(table.io, metadata_of(table), None, old)


def test_manifest_lists_are_read_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(rows(1))
    first = current(table)
    table.append(rows(2))
    lists, opened = ManifestLists(), []
    read = type(table.io).new_input

    def counted(io: FileIO, location: str) -> object:
        opened.append(location)
        return read(io, location)

    metadata = metadata_of(table)
    monkeypatch.setattr(type(table.io), "new_input", counted)
    for _ in range(2):
        read_difference(table.io, metadata, metadata.snapshots[first], metadata.current_snapshot, lists)
    assert sum("/snap-" in location for location in opened) == 2
