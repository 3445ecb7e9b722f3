"""Table snapshots: requested, recorded, updated, listed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Invalid, NotFound
from registry.inputs import SnapshotDraft
from registry.json_text import JsonText
from registry.models import LakeTable, TableSnapshot
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, BAD_TEXT, Refused
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock
from tests.samples import TABLE, snapshot


@pytest.fixture
async def table(store: MetadataStore) -> LakeTable:
    return await store.create_table("db", "t", "s3://lake/t", TABLE)


async def test_a_request_becomes_a_snapshot(store: MetadataStore, table: LakeTable, clock: ManualClock) -> None:
    now = clock.now_ms()
    asked = await store.request_snapshot(table.id, trigger="time", tag="v1", reason="because")
    assert asked == TableSnapshot(
        asked.id, table.id, None, now, None, JsonText("{}"), None, "time", "requested", "v1", "because", now, now
    )
    clock.advance(10)
    done = await store.update_snapshot(asked.id, snapshot(2**62, tag="v1"))
    assert (done.status, done.snapshot_id, done.summary) == ("created", 2**62, '{"operation":"append"}')
    assert (done.created_at, done.updated_at) == (now, clock.now_ms())
    assert done.reason is None  # a draft replaces everything that it holds
    assert await store.list_snapshots(table.id) == [done]


async def test_all_columns_of_a_snapshot_are_stored(store: MetadataStore, table: LakeTable, clock: ManualClock) -> None:
    draft = SnapshotDraft(
        snapshot_id=5, timestamp=7, manifest_list='s3://"m"', summary=JsonText('{"a":"\\\\"}'), schema_id=3,
        trigger="size", status="created", tag="ü", reason="it's",
    )  # fmt: skip
    row = await store.record_snapshot(table.id, draft)
    now = clock.now_ms()
    assert msgspec.structs.astuple(row) == (row.id, table.id, *msgspec.structs.astuple(draft), now, now)


async def test_snapshots_are_listed_by_page_and_status(store: MetadataStore, table: LakeTable) -> None:
    rows = [await store.record_snapshot(table.id, snapshot(number)) for number in range(5)]
    asked = await store.request_snapshot(table.id)
    assert await store.list_snapshots(table.id, limit=2) == rows[:2]
    assert await store.list_snapshots(table.id, after=rows[1].id, limit=2) == rows[2:4]
    assert await store.list_snapshots(table.id, status="requested") == [asked]
    assert await store.list_snapshots(table.id, status="failed") == []
    assert await store.list_snapshots(table.id + 1) == []


async def test_tags_are_unique_among_live_snapshots(store: MetadataStore, table: LakeTable) -> None:
    second = await store.create_table("db", "u", "s3://lake/u", TABLE)
    one = await store.record_snapshot(table.id, snapshot(1, tag="v1"))
    two = await store.record_snapshot(table.id, snapshot(2))
    async with unchanged(store):
        with pytest.raises(AlreadyExists, match="tag 'v1'"):
            await store.request_snapshot(table.id, tag="v1")
        with pytest.raises(AlreadyExists, match="tag 'v1'"):
            await store.update_snapshot(two.id, snapshot(2, tag="v1"))
    await store.update_snapshot(two.id, snapshot(1, tag="v2"))  # two names for one snapshot
    await store.record_snapshot(second.id, snapshot(1, tag="v1"))
    await store.update_snapshot(one.id, msgspec.structs.replace(snapshot(1, tag="v1"), status="expired"))
    assert (await store.request_snapshot(table.id, tag="v1")).tag == "v1"


async def test_one_of_two_concurrent_requests_for_a_tag_wins(
    store: MetadataStore, other: MetadataStore, table: LakeTable
) -> None:
    results = await asyncio.gather(
        *((store, other)[n % 2].request_snapshot(table.id, tag="v1") for n in range(4)), return_exceptions=True
    )
    assert sum(isinstance(result, TableSnapshot) for result in results) == 1
    assert sum(isinstance(result, AlreadyExists) for result in results) == 3


async def test_what_is_missing_is_named(store: MetadataStore, table: LakeTable) -> None:
    async with unchanged(store):
        with pytest.raises(NotFound, match=f"table {table.id + 1} does not exist"):
            await store.request_snapshot(table.id + 1)
        with pytest.raises(NotFound, match=f"table {table.id + 1} does not exist"):
            await store.record_snapshot(table.id + 1, snapshot(1))
        with pytest.raises(NotFound, match="row 99"):
            await store.update_snapshot(99, snapshot(1))


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, table: LakeTable, refused: Refused) -> None:
    row = await store.record_snapshot(table.id, snapshot(1))

    async def refuse(field: str, value: Any) -> None:
        bad = msgspec.structs.replace(snapshot(2), **{field: value})
        await refused(store.record_snapshot(table.id, bad), field, value)
        await refused(store.update_snapshot(row.id, bad), field, value)

    async with unchanged(store):
        for number in BAD_COUNTS:
            for field in ("snapshot_id", "timestamp", "schema_id"):
                await refuse(field, number)
            await refused(store.record_snapshot(number, snapshot(2)), "table_id", number)
            await refused(store.request_snapshot(number), "table_id", number)
            await refused(store.update_snapshot(number, snapshot(2)), "row_id", number)
            await refused(store.list_snapshots(number), "table_id", number)
            await refused(store.list_snapshots(table.id, after=number), "after", number)
            await refused(store.list_snapshots(table.id, limit=number), "limit", number)
        for name in BAD_NAMES:
            if name is not None:
                await refuse("tag", name)
        for text in BAD_TEXT:
            await refuse("summary", text)
            await refuse("trigger", text)
            await refuse("status", text)
            if text is not None:
                await refuse("reason", text)
                await refuse("manifest_list", text)
        await refused(store.list_snapshots(table.id, status="gone"), "status", "gone")  # type: ignore[arg-type]
        await refuse("snapshot_id", None)  # a created one has an id
        with pytest.raises(Invalid):
            await store.record_snapshot(table.id, msgspec.structs.replace(snapshot(2), summary=JsonText("{")))
