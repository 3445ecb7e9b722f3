"""Metadata that names files of another table: nothing hands these to the cleaner."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyiceberg.table import Table

from components.lib.lake.iceberg import IcebergTables, SnapshotChange, TableCommit
from components.snapshotter.reachability import unreferenced_metadata
from registry.models import LakeTable
from registry.position import Position
from tests.foreign_files import SNAPSHOT, forged_metadata, local, named_files
from tests.parquet_files import PLAIN, as_row, row, write_file


def written(tables: IcebergTables, table: LakeTable, directory: Path) -> Table:
    file = as_row(write_file(directory / table.name / "data", [row(1)]), table.id)

    def build(draft: TableCommit) -> None:
        draft.add_snapshot(SnapshotChange([file]), {1: PLAIN})
        draft.set_stamp(Position(1))

    tables.ensure(table, PLAIN)
    tables.commit(table, build)
    found = tables.load(table)
    assert found is not None
    return found


@pytest.fixture
def victim(tables: IcebergTables, table: LakeTable, warehouse: Path) -> Table:
    location = (warehouse / "returns").resolve().as_uri()
    return written(tables, msgspec.structs.replace(table, id=8, name="returns", location=location), warehouse)


@pytest.fixture
def forger(tables: IcebergTables, table: LakeTable, warehouse: Path, victim: Table) -> Table:
    made = written(tables, table, warehouse)
    local(made.metadata_location).write_bytes(forged_metadata(victim, made))
    return made


def test_a_drop_leaves_files_of_other_tables(
    other: IcebergTables, forger: Table, victim: Table, table: LakeTable
) -> None:
    found = set(other.metadata_files(table.id))
    assert found == named_files(forger)
    assert not found & named_files(victim)


def test_retention_leaves_files_of_other_tables(
    other: IcebergTables, forger: Table, victim: Table, table: LakeTable
) -> None:
    done = other.commit(table, lambda draft: draft.expire([SNAPSHOT]))
    assert done is not None
    assert SNAPSHOT not in {snapshot.snapshot_id for snapshot in done.table.metadata.snapshots}
    assert done.unreferenced == []


def test_expiration_leaves_files_of_other_tables(
    other: IcebergTables, forger: Table, victim: Table, table: LakeTable
) -> None:
    loaded = other.load(table)
    assert loaded is not None
    assert unreferenced_metadata(loaded, {SNAPSHOT}) == []
    (own,) = (known.snapshot_id for known in loaded.metadata.snapshots if known.snapshot_id != SNAPSHOT)
    assert len(unreferenced_metadata(loaded, {own})) == 2, "its own manifest list and manifest"
