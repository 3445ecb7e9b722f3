"""Verification of tables with delete files of other engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from astha.cli.root import main
from components.commands.verify.report import DifferenceKind
from components.lib.lake.iceberg import SnapshotChange, TableCommit
from components.lib.lake.schema.table_schema import TableSchema
from registry.models import LakeTable
from tests.delete_files import position_deletes
from tests.engine_commits import commit_as_engine
from tests.integration.components.commands.verify.conftest import Stage, kinds, only
from tests.lake import table_schema

SCHEMA: TableSchema = table_schema()


@pytest.fixture
async def table(stage: Stage, tmp_path: Path) -> LakeTable:
    """Two files of two rows; an engine has deleted one row of each."""
    made = await stage.create()
    files = [*await stage.insert(made), *await stage.insert(made)]
    await stage.commit()
    deletes = position_deletes(tmp_path / "d.parquet", {file.file_path: [0] for file in files})
    await commit_as_engine(stage.store, stage.tables, made, deletes=[deletes], schema=SCHEMA)
    await stage.write_ledger("live", await stage.store.position())
    return made


async def test_deleted_rows_are_not_counted(stage: Stage, table: LakeTable) -> None:
    report = await stage.verify(files=True)
    assert report.equal, report
    (found,) = report.tables
    assert (found.rows, found.rows_deleted, found.delete_files, found.objects_checked) == (4, 2, 1, 3)
    assert stage.load(table).scan().to_arrow().num_rows == found.rows - found.rows_deleted


async def test_a_delete_file_that_iceberg_has_lost(stage: Stage, table: LakeTable) -> None:
    (row,) = await stage.store.list_delete_files(table.id)

    def build(draft: TableCommit) -> None:
        draft.add_snapshot(SnapshotChange(deletes_removed=[row.file_path]), {1: SCHEMA})
        draft.set_stamp(draft.stamp.position)

    stage.tables.commit(table, build)
    await stage.write_ledger("live", await stage.store.position())
    found = only(await stage.verify(timeout_s=5.0))
    assert (found.kind, found.items) == (DifferenceKind.DELETES_LOST, [f"{row.file_path} (2 rows)"])
    if stage.url.startswith("sqlite"):  # PostgreSQL's position moves on by the ledger's own row
        assert "astha refresh iceberg_updater" in (found.cause.repair or "")
    await stage.commit()
    assert (await stage.verify()).equal
    assert stage.load(table).scan().to_arrow().num_rows == 2


async def test_a_delete_file_that_the_registry_has_lost(stage: Stage, table: LakeTable) -> None:
    stage.execute("DELETE FROM table_delete_files")
    assert kinds(await stage.verify(timeout_s=5.0)) == {DifferenceKind.DELETES_UNKNOWN}


async def test_a_delete_file_is_missing_in_storage(stage: Stage, table: LakeTable, tmp_path: Path) -> None:
    (tmp_path / "d.parquet").unlink()
    assert (await stage.verify()).equal, "only storage is wrong"
    found = only(await stage.verify(files=True))
    assert found.kind is DifferenceKind.DELETES_MISSING
    assert found.cause.repair == "restore it from a copy"


async def test_the_command_shows_rows_without_deletes(stage: Stage, table: LakeTable) -> None:
    import asyncio

    words = ["verify", "--registry", stage.url, "--set", "server.port=1"]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert result.exit_code == 0, result.output
    assert "1 delete file, 2 rows without those deleted by position" in result.output
