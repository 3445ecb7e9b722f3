from __future__ import annotations

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from components.lib.lake.iceberg import Retention
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
