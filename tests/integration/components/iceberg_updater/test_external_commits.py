"""Commits of other engines: detected, not overwritten, and adopted or reverted by command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from astha.cli.exit_codes import Exit
from astha.cli.root import main
from components.iceberg_updater.external_commits import adopt, revert
from components.iceberg_updater.status import read_all_statuses
from components.lib.lake.iceberg import Stamp, TableProblem
from registry.inputs import SnapshotDraft
from registry.models import LakeTable
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.lake import execute_sql
from tests.parquet_files import PLAIN


def append_externally(lake: Lake, table: LakeTable, *ids: int) -> None:
    loaded = lake.load(table)
    rows = [{"id": number, "name": "external", "at": None} for number in ids]
    loaded.append(pa.Table.from_pylist(rows, PLAIN.arrow()))


def upgrade_externally(lake: Lake, table: LakeTable) -> None:
    """Edits the metadata file: PyIceberg cannot write format version 3."""
    path = Path(lake.load(table).metadata_location.removeprefix("file://"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 3, "next-row-id": 0}))


@pytest.fixture
async def table(lake: Lake) -> LakeTable:
    """Rows 1 and 2 by Astha, then rows 3 and 4 by another engine."""
    made = await lake.create()
    await lake.insert(made, 1)
    await lake.insert(made, 2)
    await lake.deliver()
    append_externally(lake, made, 3, 4)
    return made


async def test_an_external_commit_is_never_overwritten(lake: Lake, table: LakeTable) -> None:
    other = await lake.create("other")
    await lake.insert(table, 5)
    await lake.insert(other, 6)
    await lake.deliver()
    assert lake.ids(table) == [1, 2, 3, 4]
    assert lake.ids(other) == [6]
    assert "another engine has committed" in (lake.stopped(table) or "")
    await lake.restart()
    await lake.insert(table, 7)
    await lake.deliver()
    await lake.refresh()
    assert lake.ids(table) == [1, 2, 3, 4]
    (status, _) = await read_all_statuses(lake.store, lake.tables)
    assert status.state == "stopped"
    assert status.behind == 2


async def test_a_refresh_detects_an_external_commit(lake: Lake, table: LakeTable) -> None:
    await lake.refresh()
    assert lake.ids(table) == [1, 2, 3, 4]
    assert "astha iceberg adopt" in (lake.stopped(table) or "")


async def test_adopting_registers_the_files(lake: Lake, table: LakeTable) -> None:
    await lake.insert(table, 5)
    await lake.deliver()
    done = await adopt(lake.store, lake.tables, table)
    assert (done.added, done.removed) == (1, 0)
    await lake.refresh()
    assert lake.ids(table) == [1, 2, 3, 4, 5]
    await lake.require_agreement(table)
    assert lake.stopped(table) is None
    files = [file async for file in lake.store.stream_files(table.id)]
    assert [file.operation for file in files] == ["insert", "insert", "insert", "import"]
    assert all(file.column_stats for file in files)
    await lake.insert(table, 6)
    await lake.deliver()
    assert lake.ids(table) == [1, 2, 3, 4, 5, 6]


async def test_adopting_removes_externally_removed_files(lake: Lake, table: LakeTable) -> None:
    lake.load(table).delete("id = 1")
    done = await adopt(lake.store, lake.tables, table)
    assert (done.added, done.removed) == (1, 1)
    await lake.refresh()
    assert lake.ids(table) == [2, 3, 4]
    await lake.require_agreement(table)
    again = await adopt(lake.store, lake.tables, table)
    assert (again.added, again.removed) == (0, 0)


async def test_the_next_event_starts_a_refresh_after_adopting(lake: Lake, table: LakeTable) -> None:
    """No refresh is requested: the table's own properties mark it."""
    await lake.insert(table, 5)
    await lake.deliver()
    await adopt(lake.store, lake.tables, table)
    await lake.insert(table, 6)
    await lake.deliver()
    await lake.settled()
    assert lake.ids(table) == [1, 2, 3, 4, 5, 6]


async def test_reverting_restores_the_registrys_files(lake: Lake, table: LakeTable) -> None:
    lake.load(table).delete("id = 1")
    await lake.insert(table, 5)
    await lake.deliver()
    done = await revert(lake.store, lake.tables, table)
    assert (done.added, done.removed) == (2, 1)
    assert lake.ids(table) == [1, 2, 5]
    await lake.refresh()
    assert lake.stopped(table) is None
    await lake.require_agreement(table)


async def test_an_external_schema_change_is_detected_and_reverted(lake: Lake, table: LakeTable) -> None:
    await revert(lake.store, lake.tables, table)
    with lake.load(table).update_schema() as change:
        change.rename_column("name", "title")
    await lake.refresh()
    assert "schema was changed" in (lake.stopped(table) or "")
    with pytest.raises(TableProblem, match="schema was changed"):
        await adopt(lake.store, lake.tables, table)
    await revert(lake.store, lake.tables, table)
    await lake.refresh()
    assert lake.stopped(table) is None
    assert lake.load(table).schema().find_field("name").field_id == 5


async def test_a_later_format_version_is_not_written(lake: Lake) -> None:
    table, other = await lake.create(), await lake.create("other")
    await lake.insert(table, 1)
    await lake.deliver()
    await lake.restart()
    upgrade_externally(lake, table)
    await lake.insert(table, 2)
    await lake.insert(other, 3)
    await lake.deliver()
    assert lake.ids(table) == [1]
    assert lake.ids(other) == [3]
    (status, _) = await read_all_statuses(lake.store, lake.tables)
    assert "format version 3" in (status.stopped or "")
    with pytest.raises(TableProblem, match="format version 3"):
        await revert(lake.store, lake.tables, table)


async def test_an_external_partition_spec_is_reverted_not_adopted(lake: Lake, table: LakeTable) -> None:
    with lake.load(table).update_spec() as change:
        change.add_identity("name")
    append_externally(lake, table, 9)
    with pytest.raises(TableProblem, match="partition spec that no schema version"):
        await adopt(lake.store, lake.tables, table)
    await revert(lake.store, lake.tables, table)
    await lake.refresh()
    assert lake.load(table).spec().is_unpartitioned()
    assert lake.ids(table) == [1, 2]
    await lake.require_agreement(table)


async def test_adopting_needs_the_last_own_snapshot(lake: Lake, table: LakeTable) -> None:
    own = Stamp.read(lake.load(table).metadata).snapshot
    assert own is not None
    lake.tables.commit(table, lambda draft: draft.expire([own]))
    with pytest.raises(TableProblem, match="has expired"):
        await adopt(lake.store, lake.tables, table)


async def test_commands(lake: Lake, table: LakeTable) -> None:
    await lake.refresh()

    def astha(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["iceberg", *words, "--registry", lake.url, "--set", "server.port=1"])
        return result.exit_code, result.output

    code, text = await asyncio.to_thread(astha, "status", "--json")
    assert code == 1
    (shown,) = json.loads(text)
    assert shown["state"] == "stopped"
    assert shown["table"] == "shop.orders"
    assert shown["registered_files"] == 2
    await lake.updater.stop()  # or it refreshes the table by itself first
    code, text = await asyncio.to_thread(astha, "adopt", "shop.orders")
    assert code == 0, text
    assert "1 files registered, 0 removed" in text
    assert "no daemon answers" in text
    code, text = await asyncio.to_thread(astha, "status", "shop.orders")
    assert "to be compared with the registry" in text
    await lake.updater.start()
    await lake.refresh()
    code, text = await asyncio.to_thread(astha, "status")
    assert code == 0
    assert "current" in text
    code, text = await asyncio.to_thread(astha, "revert", "shop.nothing")
    assert code == 1
    assert "no table shop.nothing" in text


@pytest.mark.parametrize(
    "words",
    [
        "iceberg adopt shop.orders",
        "iceberg revert shop.orders",
        "snapshot expire shop.orders --tag v1",
        "snapshot rollback shop.orders v1 --yes",
    ],
)
async def test_commands_do_not_touch_another_registrys_table(lake: Lake, table: LakeTable, words: str) -> None:
    """Same catalog, same name, same id, and this registry has recorded no identity yet."""
    current = lake.load(table).metadata.current_snapshot_id
    assert current is not None
    lake.tables.commit(table, lambda commit: commit.set_tag("v1", current))
    await lake.store.record_snapshot(table.id, SnapshotDraft(snapshot_id=current, timestamp=1, tag="v1"))
    before = lake.load(table).metadata_location
    files = await lake.store.list_files(table.id)
    execute_sql(lake.url, "DELETE FROM source_identity")
    given = [*words.split(), "--registry", lake.url]
    result = await asyncio.to_thread(
        CliRunner().invoke, main, given + (["--set", "server.port=1"] if words.startswith("iceberg") else [])
    )
    assert result.exit_code == Exit.PROBLEM, result.output
    assert "of this or another registry" in result.output
    assert lake.load(table).metadata_location == before
    assert await lake.store.list_files(table.id) == files
    recorded = await lake.store.get_source_identity("lake")
    assert recorded is not None, "the registry's identity is recorded now"
