from __future__ import annotations

import asyncio
import time

import pytest

from components.lib.lake.iceberg import IcebergTables
from components.snapshotter import tags
from registry.contract import MetadataStore
from registry.errors import Unavailable
from registry.inputs import SnapshotDraft
from registry.models import TableSnapshot
from tests.integration.components.snapshotter.conftest import Lake
from tests.lake import execute_sql


async def test_a_request_becomes_a_tag_and_a_created_row(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1, 2)
    done = await lake.snapshot(table, "v1")
    current = lake.load(table).metadata.current_snapshot()
    assert current is not None
    assert lake.tags(table) == {"v1": current.snapshot_id}
    assert (done.snapshot_id, done.timestamp, done.manifest_list, done.schema_id, done.tag, done.trigger) == (
        current.snapshot_id, current.timestamp_ms, current.manifest_list, current.schema_id, "v1", "manual",
    )  # fmt: skip
    assert '"total-records":"2"' in done.summary


async def test_another_registrys_table_gets_no_tag(lake: Lake) -> None:
    """Same catalog, same name, same id, and this registry has recorded no identity before the snapshotter starts."""
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    before = lake.load(table).metadata_location
    execute_sql(lake.url, "DELETE FROM source_identity")
    await lake.restart()
    asked = await lake.request(table, "v1")
    await lake.tell()
    done = await lake.answered(asked)
    assert done.status == "failed"
    assert "of this or another registry" in (done.reason or "")
    assert lake.load(table).metadata_location == before


async def test_a_request_without_a_tag_gets_a_generated_one(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    done = await lake.snapshot(table)
    assert done.tag == f"snapshot-{done.id}"
    assert list(lake.tags(table)) == [done.tag]


async def test_a_request_waits_for_earlier_commits(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    await lake.insert(table, 2)  # which the updater has not seen
    asked = await lake.request(table, "v1")
    await lake.tell()
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert (await lake.row(asked)).status == "requested"
    await lake.insert(table, 3)
    await lake.update()
    done = await lake.answered(asked)
    assert lake.ids(table, done.snapshot_id) == [1, 2, 3], "everything before the request, and the rest of that commit"


async def test_a_table_without_recent_changes_does_not_wait(lake: Lake) -> None:
    table, other = await lake.create("orders"), await lake.create("other")
    await lake.insert(table, 1)
    await lake.update()
    await lake.insert(other, 9)  # the registry's position moves on, the table's stamp does not
    asked = await lake.request(table, "v1")
    await lake.tell()
    assert (await lake.answered(asked)).status == "created"
    assert lake.tags(table) != {}


async def test_after_the_updaters_refresh_the_digest_decides(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    asked = await lake.request(table, "v1")
    await lake.tell()
    async with lake.store.consistent_read() as snapshot:
        await lake.updater.on_refresh(snapshot)
    done = await lake.answered(asked)
    assert lake.ids(table, done.snapshot_id) == [1]


async def test_two_tags_for_one_state(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    first, second = await lake.snapshot(table, "a"), await lake.snapshot(table, "b")
    assert first.snapshot_id == second.snapshot_id
    assert set(lake.tags(table)) == {"a", "b"}


async def test_failures_name_the_reason(lake: Lake) -> None:
    table = await lake.create()
    await lake.update()
    asked = await lake.request(table)
    await lake.tell()
    assert (await lake.answered(asked)).reason == "the table has no Iceberg snapshot yet: insert data first"
    await lake.insert(table, 1)
    await lake.update()
    metadata = lake.load(table).metadata
    lake.load(table).manage_snapshots().create_tag(metadata.current_snapshot_id or 0, "theirs").commit()
    asked = await lake.request(table, "theirs")
    await lake.tell()
    failed = await lake.answered(asked)
    assert failed.status == "failed"
    assert "Iceberg has a tag 'theirs' already" in (failed.reason or "")
    asked = await lake.request(table, "main")
    await lake.tell()
    assert "choose another tag" in ((await lake.answered(asked)).reason or "")
    lake.load(table).delete("id = 1")  # another engine
    asked = await lake.request(table, "v2")
    await lake.tell()
    assert "another engine has committed" in ((await lake.answered(asked)).reason or "")
    assert set(lake.tags(table)) == {"theirs"}


async def test_a_request_times_out(lake: Lake) -> None:
    await lake.restart(request_timeout_s=0.2)
    table = await lake.create()
    await lake.insert(table, 1)
    asked = await lake.request(table, "v1")
    await lake.tell()
    failed = await lake.answered(asked)
    assert failed.status == "failed"
    assert "Iceberg table has not been created yet" in (failed.reason or "")
    assert await lake.store.request_snapshot(table.id, tag="v1"), "the name is free"


async def test_a_dropped_table_ends_its_requests(lake: Lake) -> None:
    table = await lake.create()
    await lake.request(table)
    await lake.tell()
    await lake.drop(table, purge=False)
    await lake.tell()
    await lake.snapshotter.stop()
    await lake.start()


async def test_an_event_may_arrive_before_its_row_is_visible(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    asked = await lake.request(table, "v1")
    looked, real = asyncio.Event(), lake.store.list_snapshots

    async def nothing_yet(*_: object, **__: object) -> list[TableSnapshot]:
        looked.set()
        return []

    monkeypatch.setattr(lake.store, "list_snapshots", nothing_yet)
    await lake.tell()
    await asyncio.wait_for(looked.wait(), 20)
    monkeypatch.setattr(lake.store, "list_snapshots", real)
    assert (await lake.answered(asked)).status == "created"


async def test_a_restart_completes_open_requests(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    asked = await lake.request(table, "v1")
    await lake.tell()  # the request waits: the updater has no events yet
    await lake.restart()
    await lake.update()
    assert (await lake.answered(asked)).status == "created"
    location = lake.load(table).metadata_location
    await lake.restart()
    await lake.snapshot(table, "v2")
    assert set(lake.tags(table)) == {"v1", "v2"}
    assert location in [entry.metadata_file for entry in lake.load(table).metadata.metadata_log][-1:]


@pytest.mark.parametrize("when", ["before the tag", "after the tag", "before the row", "after the row"])
async def test_a_request_is_fulfilled_once_after_a_kill_at_any_step(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Steps before the kill have their effect, steps after it have none."""
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    dying = asyncio.Event()

    def tag_current(tables: IcebergTables, *rest: object) -> tags.TaggedSnapshot:
        if when == "before the tag":
            loop.call_soon_threadsafe(dying.set)
            time.sleep(0.2)  # the thread of a killed process does not come this far; the tag is not set
            raise SystemError
        done = tags.tag_current(tables, *rest)  # type: ignore[arg-type]
        if when == "after the tag":
            loop.call_soon_threadsafe(dying.set)
            time.sleep(0.2)
        return done

    class Dying:
        def __init__(self, store: MetadataStore) -> None:
            self._store = store

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        async def update_snapshot(self, row_id: int, draft: SnapshotDraft) -> TableSnapshot:
            if when == "after the row":
                await self._store.update_snapshot(row_id, draft)
            dying.set()
            await asyncio.sleep(60)
            raise Unavailable("dead")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("components.snapshotter.snapshot_requests.tag_current", tag_current)
    if "row" in when:
        lake.snapshotter._store = Dying(lake.store)  # type: ignore[assignment]
    asked = await lake.request(table, "v1")
    await lake.tell()
    await asyncio.wait_for(dying.wait(), 20)
    await lake.snapshotter.stop()
    monkeypatch.undo()
    await lake.restart()
    done = await lake.answered(asked)
    assert done.status == "created", done.reason
    assert lake.tags(table) == {"v1": done.snapshot_id}
    assert lake.ids(table, done.snapshot_id) == [1]
