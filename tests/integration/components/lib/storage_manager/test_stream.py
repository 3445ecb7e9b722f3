"""Streaming inserts: files by size and by age, on a manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

from astha.subscribers.context import ComponentContext, LakeSettings
from astha.testing import ManualClock
from components.lib.storage_manager import RowsRefused, StorageManager, StorageSettings
from registry.contract import MetadataStore
from registry.errors import NotFound
from tests.lake import SIMPLE, create_table, files_below, read_rows, table_schema
from tests.waiting import eventually


def row(number: int, name: str = "a") -> dict[str, Any]:
    return {"id": number, "name": name, "day": date(2024, 5, 1)}


@pytest.fixture
def time() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def manager(
    store: MetadataStore, lake: LakeSettings, url: str, time: ManualClock
) -> AsyncIterator[StorageManager]:
    context = ComponentContext(store=store, clock=time, registry_url=SecretStr(url), lake=lake)
    settings = StorageSettings(target_file_bytes=10_000, rotate_after_s=10, schema_age_s=0)
    async with StorageManager(context, settings) as manager:
        yield manager


async def test_rows_are_buffered_until_they_are_due(
    manager: StorageManager, store: MetadataStore, warehouse: Path, time: ManualClock
) -> None:
    table = await create_table(store, warehouse, schema=table_schema(partition=[(2, IdentityTransform(), "name")]))
    async with manager.stream("shop.orders") as stream:
        await stream.write([row(1)])
        await time.advance(6)
        await stream.write([row(2), row(3, "b")])
        assert files_below(warehouse) == set()
        await time.advance(4)  # the first has waited for ten seconds, and its partition goes with it
        await eventually(lambda: len(files_below(warehouse)) == 1, "the first partition's file")
        await time.advance(6)
        await eventually(lambda: len(files_below(warehouse)) == 2, "the second partition's file")
        await stream.flush()
        assert sorted(found["id"] for found in await read_rows(store, table)) == [1, 2, 3]


async def test_a_file_is_closed_when_it_is_large_enough(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    async with manager.stream(table.id) as stream:
        for number in range(200):
            await stream.write([row(number * 10 + each, f"name {each}") for each in range(10)])
        assert 1 < len(files_below(warehouse)) < 50
    files = await store.list_files(table.id)
    assert sum(file.row_count for file in files) == 2_000 == stream.rows
    assert sorted(found["id"] for found in await read_rows(store, table)) == list(range(2_000))


async def test_a_stream_goes_on_after_a_refused_write(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    async with manager.stream(table.id) as stream:
        await stream.write([row(1)])
        with pytest.raises(RowsRefused, match=r"row 3, column 'id'"):
            await stream.write([row(2), {**row(3), "id": None}])
        await stream.write([row(4)])
    assert [found["id"] for found in await read_rows(store, table)] == [1, 4]


async def test_a_file_never_mixes_schema_versions(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    async with manager.stream(table.id) as stream:
        await stream.write([row(1)])
        wider = table_schema(Schema(*SIMPLE.fields, NestedField(4, "note", StringType())))
        await store.add_schema_version(table.id, wider.draft(), expected=1)
        await stream.write([{**row(2), "note": "x"}])
    assert [(file.schema_version, file.row_count) for file in await store.list_files(table.id)] == [(1, 1), (2, 1)]


async def test_leaving_the_block_by_an_error_writes_nothing_more(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)

    async def write_and_fail() -> None:
        async with manager.stream(table.id) as stream:
            await stream.write([row(1)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await write_and_fail()
    assert files_below(warehouse) == set()


async def test_a_failed_stream_raises_its_error_at_every_call(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    async with manager.stream(table.id) as stream:
        await stream.write([row(1)])
        await store.drop_table(table.id)
        for _ in range(2):
            with pytest.raises(NotFound):
                await stream.flush()
        with pytest.raises(NotFound):
            await stream.write([row(2)])
        stream.abandon()
    assert files_below(warehouse) == set()
