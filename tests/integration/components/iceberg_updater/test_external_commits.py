"""Another engine's commits: noticed, left alone, and adopted or reverted by command."""

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
from components.iceberg_updater.status import report_all
from components.lib.lake.iceberg import Stamp, TableProblem
from registry.inputs import SnapshotDraft
from registry.models import LakeTable
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.lake import execute_sql
from tests.parquet_files import PLAIN


def append_elsewhere(lake: Lake, table: LakeTable, *ids: int) -> None:
    loaded = lake.load(table)
    rows = [{"id": number, "name": "foreign", "at": None} for number in ids]
    loaded.append(pa.Table.from_pylist(rows, PLAIN.arrow()))


def upgrade_elsewhere(lake: Lake, table: LakeTable) -> None:
    """PyIceberg itself can't."""
    path = Path(lake.load(table).metadata_location.removeprefix("file://"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 3, "next-row-id": 0}))


@pytest.fixture
async def table(lake: Lake) -> LakeTable:
    """Two files, 1 and 2, then 3 and 4 of somebody else."""
    made = await lake.create()
    await lake.insert(made, 1)
    await lake.insert(made, 2)
    await lake.deliver()
    append_elsewhere(lake, made, 3, 4)
    return made


async def test_a_foreign_commit_is_never_overwritten(lake: Lake, table: LakeTable) -> None:
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
    (report, _) = await report_all(lake.store, lake.tables)
    assert report.state == "stopped"
    assert report.behind == 2


async def test_a_refresh_notices_too(lake: Lake, table: LakeTable) -> None:
    await lake.refresh()
    assert lake.ids(table) == [1, 2, 3, 4]
    assert "astha iceberg adopt" in (lake.stopped(table) or "")


async def test_adopting_registers_the_files(lake: Lake, table: LakeTable) -> None:
    await lake.insert(table, 5)
    await lake.deliver()
    outcome = await adopt(lake.store, lake.tables, table)
    assert (outcome.added, outcome.removed) == (1, 0)
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


async def test_adopting_removes_what_was_removed_elsewhere(lake: Lake, table: LakeTable) -> None:
    lake.load(table).delete("id = 1")
    outcome = await adopt(lake.store, lake.tables, table)
    assert (outcome.added, outcome.removed) == (1, 1)
    await lake.refresh()
    assert lake.ids(table) == [2, 3, 4]
    await lake.require_agreement(table)
    again = await adopt(lake.store, lake.tables, table)
    assert (again.added, again.removed) == (0, 0)


async def test_the_next_event_makes_the_daemon_compare(lake: Lake, table: LakeTable) -> None:
    """Without a daemon that could be asked to: the table itself says it."""
    await lake.insert(table, 5)
    await lake.deliver()
    await adopt(lake.store, lake.tables, table)
    await lake.insert(table, 6)
    await lake.deliver()
    await lake.settled()
    assert lake.ids(table) == [1, 2, 3, 4, 5, 6]


async def test_reverting_brings_back_the_registrys_files(lake: Lake, table: LakeTable) -> None:
    lake.load(table).delete("id = 1")
    await lake.insert(table, 5)
    await lake.deliver()
    outcome = await revert(lake.store, lake.tables, table)
    assert (outcome.added, outcome.removed) == (2, 1)
    assert lake.ids(table) == [1, 2, 5]
    await lake.refresh()
    assert lake.stopped(table) is None
    await lake.require_agreement(table)


async def test_a_changed_schema_is_noticed_and_reverted(lake: Lake, table: LakeTable) -> None:
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


async def test_a_later_format_is_left_alone(lake: Lake) -> None:
    table, other = await lake.create(), await lake.create("other")
    await lake.insert(table, 1)
    await lake.deliver()
    await lake.restart()
    upgrade_elsewhere(lake, table)
    await lake.insert(table, 2)
    await lake.insert(other, 3)
    await lake.deliver()
    assert lake.ids(table) == [1]
    assert lake.ids(other) == [3]
    (report, _) = await report_all(lake.store, lake.tables)
    assert "format version 3" in (report.stopped or "")
    with pytest.raises(TableProblem, match="format version 3"):
        await revert(lake.store, lake.tables, table)


async def test_a_foreign_partition_spec_is_not_adopted_but_reverted(lake: Lake, table: LakeTable) -> None:
    with lake.load(table).update_spec() as change:
        change.add_identity("name")
    append_elsewhere(lake, table, 9)
    with pytest.raises(TableProblem, match="partitioned in a way"):
        await adopt(lake.store, lake.tables, table)
    await revert(lake.store, lake.tables, table)
    await lake.refresh()
    assert lake.load(table).spec().is_unpartitioned()
    assert lake.ids(table) == [1, 2]
    await lake.require_agreement(table)


async def test_what_expired_can_not_be_adopted(lake: Lake, table: LakeTable) -> None:
    own = Stamp.read(lake.load(table).metadata).snapshot
    assert own is not None
    lake.tables.commit(table, lambda draft: draft.expire([own]))
    with pytest.raises(TableProblem, match="has expired"):
        await adopt(lake.store, lake.tables, table)


async def test_the_commands(lake: Lake, table: LakeTable) -> None:
    await lake.refresh()

    def astha(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["iceberg", *words, "--registry", lake.url, "--set", "server.port=1"])
        return result.exit_code, result.output

    code, text = await asyncio.to_thread(astha, "status", "--json")
    assert code == 1
    (told,) = json.loads(text)
    assert told["state"] == "stopped"
    assert told["table"] == "shop.orders"
    assert told["registered_files"] == 2
    await lake.updater.stop()  # or it compares the table by itself, before it is asked for
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
async def test_a_command_leaves_another_registrys_table_alone(lake: Lake, table: LakeTable, words: str) -> None:
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
    assert recorded is not None, "from here on its own tables are known"
