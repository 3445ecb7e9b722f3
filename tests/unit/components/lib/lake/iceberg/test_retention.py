from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from components.lib.lake.iceberg import Retention
from components.lib.lake.iceberg.manifest_lists import DroppedManifests
from components.lib.lake.iceberg.retention import unreferenced_files
from tests.parquet_files import COLUMNS


def metadata(count: int, properties: dict[str, str] | None = None, **refs: tuple[str, int]) -> TableMetadata:
    """Returns snapshots 1..count, one per second, each the parent of the next."""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            sequence_number=number,
            timestamp_ms=number * 1000,
            manifest_list=f"list-{number}",
            summary=Summary(Operation.APPEND),
        )
        for number in range(1, count + 1)
    ]
    named = {"main": ("branch", count), **refs}
    empty = new_table_metadata(Schema(*COLUMNS), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///t", {})
    return empty.model_copy(
        update={
            "snapshots": snapshots,
            "current_snapshot_id": count,
            "refs": {
                name: SnapshotRef.model_validate({"type": kind, "snapshot-id": at})
                for name, (kind, at) in named.items()
            },
            "properties": properties or {},
        }
    )


def expired(found: TableMetadata, most: int = 10, now_ms: int = 0) -> list[int]:
    return [snapshot.snapshot_id for snapshot in Retention(most).expired(found, now_ms)]


@pytest.mark.parametrize(("count", "gone"), [(1, []), (10, []), (11, [1]), (14, [1, 2, 3, 4])])
def test_the_newest_snapshots_are_kept(count: int, gone: list[int]) -> None:
    assert expired(metadata(count)) == gone


def test_snapshots_expire_in_batches() -> None:
    """Expiring ten at once costs as much as expiring one."""
    assert expired(metadata(105), most=100) == []
    assert expired(metadata(110), most=100) == list(range(1, 11))


def test_tagged_snapshots_are_kept() -> None:
    assert expired(metadata(14, early=("tag", 2))) == [1, 3, 4]
    assert expired(metadata(14, old=("branch", 3))) == [4]


def test_a_table_property_can_keep_more() -> None:
    assert expired(metadata(14, {"history.expire.min-snapshots-to-keep": "13"})) == [1]


def test_a_table_property_can_keep_fewer() -> None:
    young = {"history.expire.max-snapshot-age-ms": "3000"}
    assert expired(metadata(8, young), now_ms=8000) == [1, 2, 3, 4]
    both = {**young, "history.expire.min-snapshots-to-keep": "7"}
    assert expired(metadata(8, both), now_ms=8000) == [1]


@given(
    lives=st.lists(st.tuples(st.integers(1, 12), st.integers(2, 14)), max_size=30),
    gone=st.sets(st.integers(1, 11)),
    early=st.sets(st.integers(1, 11)),
)
def test_what_is_remembered_gives_the_files_that_reading_would(
    lives: list[tuple[int, int]], gone: set[int], early: set[int]
) -> None:
    """Each manifest is in the snapshots of a range. Snapshots in ``early`` expire first, which leaves gaps."""
    found = metadata(12)
    contents = {
        number: {f"m{place}" for place, (first, end) in enumerate(lives) if first <= number < end}
        for number in range(1, 13)
    }
    dropped = {
        number: DroppedManifests(
            number - 1,
            tuple((f"m{place}", first) for place, (first, end) in enumerate(lives) if end == number and first < end),
        )
        for number in range(2, 13)
    }
    left = found.model_copy(update={"snapshots": [one for one in found.snapshots if one.snapshot_id not in early]})
    expiring = [one for one in left.snapshots if one.snapshot_id in gone]
    reads: list[int] = []

    def read(snapshot: Snapshot, _: FileIO) -> list[ManifestFile]:
        reads.append(snapshot.snapshot_id)
        return [ManifestFile.from_args(manifest_path=path) for path in contents[snapshot.snapshot_id]]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Snapshot, "manifests", read)
        by_reading = unreferenced_files(PyArrowFileIO(), left, expiring)
        reads.clear()
        remembered = unreferenced_files(PyArrowFileIO(), left, expiring, dropped)

    assert remembered == by_reading
    if not early:
        assert not reads
