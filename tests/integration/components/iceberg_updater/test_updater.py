from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from astha.events import Operation
from components.iceberg_updater import refresh
from components.iceberg_updater.committer import Committer, TargetTable
from components.lib.lake.iceberg import StagedFiles, Stamp, TableUnavailable
from components.lib.lake.schema.table_schema import TableSchema
from registry.models import TableFile
from registry.position import Position
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.parquet_files import BY_DAY, COLUMNS, PLAIN, write_files

DAY = datetime(2024, 5, 1, tzinfo=UTC)


async def test_files_are_added_and_removed(lake: Lake) -> None:
    table = await lake.create()
    first = await lake.insert(table, 1, 2)
    await lake.insert(table, 3)
    await lake.deliver()
    assert lake.ids(table) == [1, 2, 3]
    assert lake.operations(table) == ["append"], "all pending transactions are one snapshot"
    await lake.remove(table, first)
    await lake.deliver()
    assert lake.ids(table) == [3]
    assert lake.operations(table) == ["append", "delete"]
    await lake.require_agreement(table)
    await lake.drop(table)
    await lake.deliver()
    assert lake.tables.load(table) is None


@pytest.mark.parametrize("purge", [False, True])
async def test_a_purged_tables_metadata_is_left_to_the_cleaner(lake: Lake, purge: bool) -> None:
    table = await lake.create()
    for number in range(3):
        await lake.insert(table, number)
        await lake.deliver()
    loaded = lake.tables.load(table)
    assert loaded is not None
    written = {loaded.metadata_location, *(snapshot.manifest_list for snapshot in loaded.snapshots())}
    await lake.drop(table, purge=purge)
    await lake.deliver()
    handed_over = {intent.path for intent in await lake.store.list_stale_intents(0)}
    assert (handed_over >= written) if purge else not handed_over  # another catalog may delete what is old itself


async def test_a_swap_is_a_separate_replace_snapshot(lake: Lake) -> None:
    table = await lake.create()
    small = [file for number in range(3) for file in await lake.insert(table, number)]
    await lake.compact(table, small, 0, 1, 2)
    await lake.insert(table, 9)
    await lake.deliver()
    assert lake.operations(table) == ["append", "replace", "append"]
    assert len(lake.load(table).metadata.metadata_log) == 1, "one catalog commit after the table's creation"
    assert lake.ids(table) == [0, 1, 2, 9]
    await lake.require_agreement(table)


async def test_a_compaction_that_loses_rows_is_an_overwrite(lake: Lake) -> None:
    table = await lake.create()
    files = await lake.insert(table, 1, 2)
    await lake.deliver()
    await lake.compact(table, files, 1)
    await lake.deliver()
    assert lake.operations(table) == ["append", "overwrite"]


async def test_redelivery_changes_nothing(lake: Lake) -> None:
    table = await lake.create()
    files = await lake.insert(table, 1)
    await lake.remove(table, files)
    await lake.insert(table, 2)
    given = await lake.deliver()
    before = lake.load(table).metadata_location
    await lake.updater.on_transactions(given)
    await lake.restart()
    await lake.updater.on_transactions(given)
    for events in given:
        await lake.updater.on_transactions([events])
    assert lake.load(table).metadata_location == before


async def test_redelivery_with_new_events_commits_only_those(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    given = await lake.deliver()
    await lake.restart()
    await lake.insert(table, 2)
    await lake.updater.on_transactions([*given, *lake.pending])
    assert lake.ids(table) == [1, 2]
    await lake.require_agreement(table)
    assert Stamp.read(lake.load(table).metadata).position == lake.pending[-1][0].position


async def test_a_file_added_and_removed_cancels_out(lake: Lake) -> None:
    table = await lake.create()
    await lake.deliver()
    files = await lake.insert(table, 1)
    await lake.remove(table, files)
    await lake.deliver()
    assert lake.operations(table) == []


async def test_schema_versions(lake: Lake) -> None:
    table = await lake.create(schema=BY_DAY)
    await lake.insert(table, 1, schema=BY_DAY, name="a", at=DAY)
    renamed = (*COLUMNS[:1], NestedField(5, "title", StringType(), required=False), COLUMNS[2])
    second = TableSchema(2, Schema(*renamed, NestedField(8, "n", LongType())), BY_DAY.partition, BY_DAY.order)
    await lake.evolve(table, second)
    rows = [{"id": 2, "title": "b", "at": DAY, "n": 7}]
    drafts = write_files(lake.warehouse / "orders" / "data", rows, second)
    await lake.happened(*((Operation.INSERT, file) for file in await lake.store.add_files(table.id, drafts)))
    await lake.deliver()
    found = lake.load(table).scan().to_arrow().sort_by("id").to_pylist()
    assert [(one["id"], one["title"], one["n"]) for one in found] == [(1, "a", None), (2, "b", 7)]
    await lake.require_agreement(table)


async def test_an_invalid_schema_stops_only_its_table(lake: Lake) -> None:
    good, bad = await lake.create("good"), await lake.create("bad")
    await lake.deliver()
    await lake.evolve(bad, TableSchema(2, Schema(NestedField(1, "id", StringType())), PLAIN.partition, PLAIN.order))
    await lake.insert(bad, 1)
    await lake.insert(good, 2)
    await lake.deliver()
    assert lake.ids(good) == [2]
    assert "column id: long can't become string" in (lake.stopped(bad) or "")
    await lake.restart()
    await lake.insert(bad, 3)
    await lake.deliver()
    assert lake.operations(bad) == [], "still stopped after a restart"
    await lake.evolve(bad, TableSchema(3, PLAIN.iceberg, PLAIN.partition, PLAIN.order))
    await lake.deliver()
    await lake.settled()
    assert lake.stopped(bad) is None
    assert lake.ids(bad) == [1, 3]
    await lake.require_agreement(good, bad)


async def test_tables_of_other_formats_are_ignored(lake: Lake) -> None:
    schema = TableSchema(1, PLAIN.iceberg, PLAIN.partition, PLAIN.order, format="json")
    table = await lake.create(schema=schema)
    await lake.deliver()
    await lake.refresh()
    assert lake.tables.load(table) is None


async def test_renames(lake: Lake) -> None:
    table = await lake.create("old")
    await lake.insert(table, 1)
    await lake.deliver()
    before = lake.load(table).metadata.table_uuid
    renamed = await lake.rename(table, "new")
    await lake.deliver()
    assert lake.load(renamed).metadata.table_uuid == before
    assert lake.tables.load(table) is None
    await lake.restart()
    again = await lake.rename(renamed, "newer")
    await lake.insert(again, 2)
    await lake.deliver()
    assert lake.ids(again) == [1, 2]


@pytest.mark.parametrize("by_refresh", [False, True])
async def test_two_tables_swap_names(lake: Lake, by_refresh: bool) -> None:
    left, right = await lake.create("left"), await lake.create("right")
    await lake.insert(left, 1)
    await lake.insert(right, 2)
    await lake.deliver()
    await lake.rename(left, "between")
    right = await lake.rename(right, "left")
    left = await lake.rename(left, "right")
    await (lake.refresh() if by_refresh else lake.deliver())
    assert lake.ids(left) == [1]
    assert lake.ids(right) == [2]
    assert len(lake.tables.catalog.list_tables("shop")) == 2


async def test_a_dropped_name_is_reused(lake: Lake) -> None:
    first = await lake.create()
    await lake.insert(first, 1)
    await lake.deliver()
    await lake.drop(first)
    second = await lake.create()
    await lake.insert(second, 2)
    await lake.deliver()
    assert lake.ids(second) == [2]


async def test_a_name_taken_by_an_unknown_table(lake: Lake) -> None:
    lake.tables.catalog.create_namespace("shop")
    lake.tables.catalog.create_table(("shop", "orders"), Schema(*COLUMNS), location=lake.warehouse.as_uri())
    table = await lake.create("orders")
    other = await lake.create("other")
    await lake.insert(table, 1)
    await lake.insert(other, 2)
    await lake.deliver()
    assert lake.ids(other) == [2]
    # In a thread: the updater retries the table, and SQLite's lock may be held by a write that this loop has to end.
    await asyncio.to_thread(lake.tables.catalog.drop_table, ("shop", "orders"))
    await lake.insert(table, 3)
    await lake.refresh()
    assert lake.ids(table) == [1, 3]


async def test_table_properties_are_copied(lake: Lake) -> None:
    given = {"history.expire.min-snapshots-to-keep": "5", "comment": "of all shops", "own": "x"}
    table = await lake.create(properties=given)
    await lake.insert(table, 1)
    await lake.deliver()
    properties = lake.load(table).metadata.properties
    assert properties["history.expire.min-snapshots-to-keep"] == "5"
    assert properties["comment"] == "of all shops"
    assert "own" not in properties


async def test_old_metadata_files_are_handed_to_the_cleaner(lake: Lake) -> None:
    table = await lake.create()
    for number in range(30):
        await lake.insert(table, number)
        await lake.deliver()
    stale = [intent.path for intent in await lake.store.list_stale_intents(0)]
    assert stale
    loaded = lake.load(table)
    for path in stale:
        loaded.io.delete(path)
    assert lake.ids(table) == list(range(30))
    assert len(loaded.metadata.snapshots) <= 22


async def test_health(lake: Lake) -> None:
    assert await lake.updater.on_health() is True


async def test_a_refresh_creates_missing_tables(lake: Lake) -> None:
    first, second = await lake.create("first"), await lake.create("second", BY_DAY)
    await lake.insert(first, *range(10))
    await lake.insert(second, 1, schema=BY_DAY, at=DAY)
    await lake.refresh()
    assert lake.ids(first) == list(range(10))
    await lake.require_agreement(first, second)
    assert Stamp.read(lake.load(first).metadata).position is None
    before = lake.load(first).metadata_location
    await lake.refresh()
    assert lake.load(first).metadata_location == before, "a second refresh commits nothing"


async def test_a_refresh_commits_the_difference_once(lake: Lake) -> None:
    table, gone = await lake.create(), await lake.create("gone")
    files = await lake.insert(table, 1)
    await lake.insert(table, 2)
    await lake.deliver()
    await lake.remove(table, files)
    await lake.insert(table, 3)
    await lake.insert(table, 4)
    await lake.drop(gone)
    await lake.refresh()
    assert lake.ids(table) == [2, 3, 4]
    assert lake.operations(table) == ["append", "overwrite"]
    assert lake.tables.load(gone) is None
    await lake.require_agreement(table)


async def test_a_large_difference_is_written_in_portions_and_seen_at_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "_PAGE", 2)
    monkeypatch.setattr(refresh, "_PORTION", 3)
    table, other = await lake.create(), await lake.create("other")
    files = await lake.insert(table, 1)
    await lake.insert(table, 2)
    await lake.deliver()
    await lake.remove(table, files)
    for number in range(3, 13):
        await lake.insert(table, number)
        await lake.insert(other, number)
    await lake.refresh()
    assert lake.ids(table) == list(range(2, 13))
    assert lake.ids(other) == list(range(3, 13))
    assert lake.operations(table) == ["append", "overwrite"]
    loaded = lake.load(table)
    manifests = loaded.current_snapshot().manifests(loaded.io)  # type: ignore[union-attr]
    assert sorted(found.added_files_count or 0 for found in manifests) == [0, 3, 3, 4]
    await lake.require_agreement(table, other)


async def test_a_large_difference_that_fails_leaves_no_manifests(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "_PORTION", 2)
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.deliver()
    for number in range(2, 8):
        await lake.insert(table, number)
    written: list[str] = []
    add = Committer.add_staged

    def fail_at_last(self: Committer, target: TargetTable, staged: StagedFiles, files: list[TableFile]) -> None:
        add(self, target, staged, files)
        written.extend(found.manifest_path for found in staged.manifests(1))
        if staged.digest.files == 6:
            raise TableUnavailable("its storage has failed")

    monkeypatch.setattr(Committer, "add_staged", fail_at_last)
    await lake.refresh()
    monkeypatch.setattr(Committer, "add_staged", add)
    assert written
    io = lake.load(table).io
    assert not [path for path in set(written) if io.new_input(path).exists()]
    await lake.refresh()
    assert lake.ids(table) == list(range(1, 8))
    await lake.require_agreement(table)


async def test_a_position_of_another_history_is_ignored_after_a_refresh(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.deliver()
    await lake.refresh()
    files = await lake.insert(table, 2)
    event = lake.pending.pop()[0]
    event.commit.position = Position(1)  # a new server counts from the beginning
    await lake.updater.on_transactions([[event]])
    assert lake.ids(table) == [1, 2]
    assert Stamp.read(lake.load(table).metadata).position == 1
    assert len(files) == 1


async def test_an_externally_dropped_table_is_recreated(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.deliver()
    lake.tables.catalog.drop_table(("shop", "orders"))
    await lake.restart()
    await lake.insert(table, 2)
    await lake.deliver()
    await lake.settled()
    assert lake.ids(table) == [1, 2]


async def test_tables_of_another_registry_are_not_dropped(lake: Lake) -> None:
    table = await lake.create()
    await lake.deliver()
    loaded = lake.load(table)
    with loaded.transaction() as change:
        change.set_properties({"astha.registry": "another", "astha.table-id": "999"})
    await lake.restart()
    await lake.drop(table)
    await lake.refresh()
    assert lake.tables.catalog.table_exists(("shop", "orders"))
