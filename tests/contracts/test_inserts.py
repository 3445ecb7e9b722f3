"""Inserts with an id: recorded with their files in one transaction, so that a repetition changes nothing."""

from __future__ import annotations

import asyncio

import pytest

from registry.contract import MetadataStore
from registry.errors import AlreadyInserted
from registry.inputs import Registration
from registry.models import LakeTable, TableInsert
from tests.contracts.bad_input import Refused
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock
from tests.fixtures.stores import OpenStore
from tests.samples import TABLE, file


@pytest.fixture
async def table(store: MetadataStore) -> LakeTable:
    return await store.create_table("db", "t", "s3://lake/t", TABLE)


def load(table: LakeTable, path: str, insert_id: str | None = "load-1") -> Registration:
    return Registration(table_id=table.id, files=[file(path, rows=7)], insert_id=insert_id)


async def test_an_insert_is_recorded_with_its_files(store: MetadataStore, table: LakeTable, clock: ManualClock) -> None:
    assert await store.get_insert(table.id, "load-1") is None
    await store.register_files([load(table, "s3://lake/t/a"), load(table, "s3://lake/t/b", None)])
    assert await store.get_insert(table.id, "load-1") == TableInsert(table.id, "load-1", 7, 1, clock.now_ms())
    assert len(await store.list_files(table.id)) == 2


async def test_a_repetition_is_refused_and_changes_nothing(store: MetadataStore, table: LakeTable) -> None:
    await store.register_files([load(table, "s3://lake/t/a")])
    async with unchanged(store):
        with pytest.raises(AlreadyInserted, match="load-1") as raised:
            await store.register_files([load(table, "s3://lake/t/c", "load-2"), load(table, "s3://lake/t/b")])
        assert raised.value.names == ("s3://lake/t/b",)
        with pytest.raises(AlreadyInserted):
            await store.register_files([load(table, "s3://lake/t/d", "load-3"), load(table, "s3://lake/t/e", "load-3")])


async def test_ids_belong_to_a_table_and_end_with_it(store: MetadataStore, table: LakeTable) -> None:
    other = await store.create_table("db", "u", "s3://lake/u", TABLE)
    await store.register_files([load(table, "s3://lake/t/a"), load(other, "s3://lake/u/a")])
    await store.drop_table(other.id)
    assert await store.get_insert(other.id, "load-1") is None
    assert await store.get_insert(table.id, "load-1") is not None


async def test_of_concurrent_repetitions_one_succeeds(
    store: MetadataStore, table: LakeTable, url: str, opened: OpenStore
) -> None:
    stores = [store, *[await opened(url) for _ in range(3)]]
    results = await asyncio.gather(
        *(one.register_files([load(table, f"s3://lake/t/{number}")]) for number, one in enumerate(stores)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, AlreadyInserted) for result in results) == 3, results
    assert len(await store.list_files(table.id)) == 1


async def test_bad_ids_are_refused(store: MetadataStore, table: LakeTable, refused: Refused) -> None:
    for bad in ("", "x" * 256):
        await refused(store.get_insert(table.id, bad), "insert_id", bad)
        await refused(store.register_files([load(table, "s3://lake/t/a", bad)]), "insert_id", bad)
