"""PyIceberg writes through the catalog, and the registry has what it wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceNotEmptyError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from astha.subscribers.context import LakeSettings
from components.lib.lake.iceberg import Stamp, live_digest
from registry.contract import MetadataStore
from registry.models import IcebergCommit, LakeTable, Row, UploadIntent
from tests.integration.components.commands.catalog.conftest import ROWS, Serve

T = TypeVar("T")
R = TypeVar("R", bound=Row)

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))


async def client(url: str, work: Callable[[Catalog], T]) -> T:
    def run() -> T:
        return work(load_catalog("lake", type="rest", uri=url))

    return await asyncio.to_thread(run)


async def registered(store: MetadataStore, name: str = "orders") -> LakeTable:
    found = await store.get_table("sales", name)
    assert found is not None
    return found


async def rows_of(store: MetadataStore, kind: type[R]) -> list[R]:
    async with store.consistent_read() as snapshot:
        return [row async for page in snapshot.rows(kind) for row in page]


async def commits(store: MetadataStore) -> list[IcebergCommit]:
    return await rows_of(store, IcebergCommit)


def create(catalog: Catalog, **options: Any) -> None:
    catalog.create_namespace("sales")
    catalog.create_table("sales.orders", SCHEMA, **options)


async def test_a_table_is_created_in_the_registry(serve: Serve, store: MetadataStore, lake: LakeSettings) -> None:
    async with serve() as url:
        await client(url, create)
        table = await registered(store)
        assert table.location == f"file://{lake.warehouse}/sales/orders"
        assert (table.status, table.file_count) == ("active", 0)
        version = await store.get_table_metadata(table.id)
        assert version is not None
        assert version.schema_version == 1
        assert [row.operation for row in await commits(store)] == ["metadata"]
        with pytest.raises(TableAlreadyExistsError):
            await client(url, lambda catalog: catalog.create_table("sales.orders", SCHEMA))


async def test_files_are_registered_and_removed_with_their_statistics(serve: Serve, store: MetadataStore) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    async with serve() as url:
        await client(url, lambda catalog: create(catalog, partition_spec=spec))

        def write(catalog: Catalog) -> None:
            table = catalog.load_table("sales.orders")
            table.append(ROWS)
            table.append(ROWS)
            table.delete("name = 'a'")
            table.overwrite(ROWS.slice(1, 1), "name = 'b'")

        await client(url, write)
        table = await registered(store)
        files = await store.list_files(table.id)
        assert sorted((file.partition_path, file.row_count) for file in files) == [
            ("name=b", 1),
            ("name=c", 1),
            ("name=c", 1),
        ]
        assert {file.operation for file in files} == {"external"}
        assert (table.row_count, table.file_count) == (3, 3)
        statistics = {row.partition_path: row.row_count for row in await store.get_statistics(table.id)}
        assert statistics == {"name=a": 0, "name=b": 1, "name=c": 2}
        rows = await client(url, lambda catalog: catalog.load_table("sales.orders").scan().to_arrow())
        assert sorted(rows["id"].to_pylist()) == [2, 3, 3]
        seen = await commits(store)
        assert [row.operation for row in seen][:3] == ["metadata", "append", "append"]
        assert sum(row.added_files - row.removed_files for row in seen) == 3
        assert seen[1].engine is not None


async def test_the_stamp_follows_the_commits(serve: Serve, store: MetadataStore) -> None:
    async with serve() as url:
        await client(url, create)

        def write(catalog: Catalog) -> None:
            table = catalog.load_table("sales.orders")
            table.append(ROWS)
            with table.transaction() as transaction:
                transaction.set_properties({"astha.digest": "forged", "owner": "ann"})
            table = catalog.load_table("sales.orders")
            assert table.properties["owner"] == "ann"
            stamp, snapshot = Stamp.read(table.metadata), table.current_snapshot()
            assert snapshot is not None
            assert stamp.snapshot == snapshot.snapshot_id
            assert stamp.digest == live_digest(table)

        await client(url, write)


async def test_a_changed_schema_is_a_version(serve: Serve, store: MetadataStore) -> None:
    async with serve() as url:
        await client(url, create)

        def evolve(catalog: Catalog) -> None:
            table = catalog.load_table("sales.orders")
            with table.update_schema() as update:
                update.add_column("amount", LongType())
            table.append(pa.table({"id": [1], "name": ["a"], "amount": [5]}))
            with table.update_spec() as update:
                update.add_identity("name")
            table.append(pa.table({"id": [2], "name": ["b"], "amount": [6]}))

        await client(url, evolve)
        table = await registered(store)
        versions = await store.list_table_metadata(table.id)
        assert [version.schema_version for version in versions] == [1, 2, 3]
        files = sorted(await store.list_files(table.id), key=lambda file: file.id)
        assert [(file.schema_version, file.partition_path) for file in files] == [(2, ""), (3, "name=b")]


async def test_a_table_is_renamed_and_dropped(serve: Serve, store: MetadataStore) -> None:
    async with serve() as url:
        await client(url, create)

        def change(catalog: Catalog) -> None:
            catalog.load_table("sales.orders").append(ROWS)
            catalog.create_namespace("archive")
            catalog.rename_table("sales.orders", "archive.old_orders")
            assert catalog.load_table("archive.old_orders").scan().to_arrow().num_rows == 3
            with pytest.raises(NoSuchTableError):
                catalog.load_table("sales.orders")
            with pytest.raises(NamespaceNotEmptyError):
                catalog.drop_namespace("archive")
            catalog.create_table("sales.orders", SCHEMA)  # the former location is taken

        await client(url, change)
        old, new = await store.get_table("archive", "old_orders"), await registered(store)
        assert old is not None
        assert new.location.startswith(f"{old.location}-")
        files = [file.file_path for file in await store.list_files(old.id)]
        await client(url, lambda catalog: catalog.purge_table("archive.old_orders"))
        assert await store.get_table("archive", "old_orders") is None
        waiting = await store.list_files_awaiting_deletion()
        assert [row.file_path for row in waiting] == files
        intents = [intent.path for intent in await rows_of(store, UploadIntent)]
        assert any(path.endswith(".metadata.json") for path in intents)
        assert any(path.endswith("-m0.avro") for path in intents)
        assert all(path.startswith(f"{old.location}/") for path in intents)


async def test_concurrent_writers_lose_no_rows(serve: Serve, store: MetadataStore) -> None:
    """Two processes: the per-table queue of each can't order them, so the registry's comparison decides."""
    async with serve() as one, serve() as other:
        await client(one, create)

        def append(catalog: Catalog) -> int:
            done = 0
            for _ in range(4):
                try:
                    catalog.load_table("sales.orders").append(ROWS)
                    done += 1
                except CommitFailedException:
                    continue
            return done

        done = sum(await asyncio.gather(*(client(url, append) for url in (one, other, one))))
        table = await registered(store)
        assert (table.row_count, table.file_count) == (3 * done, done)
        assert await client(one, lambda catalog: catalog.load_table("sales.orders").scan().count()) == 3 * done


async def test_a_foreign_table_becomes_the_registrys_with_a_commit(
    serve: Serve, store: MetadataStore, tables: Catalog, lake: LakeSettings
) -> None:
    def foreign() -> None:
        tables.create_namespace("sales")
        table = tables.create_table("sales.orders", SCHEMA, location=f"file://{lake.warehouse}/sales/orders")
        table.append(ROWS)

    await asyncio.to_thread(foreign)
    assert await store.get_table("sales", "orders") is None
    async with serve() as url:
        await client(url, lambda catalog: catalog.load_table("sales.orders").append(ROWS))
    assert ((await registered(store)).row_count, (await registered(store)).file_count) == (6, 2)


async def test_a_table_is_registered_with_its_files(serve: Serve, store: MetadataStore) -> None:
    async with serve() as url:
        await client(url, create)

        def register(catalog: Catalog) -> None:
            catalog.load_table("sales.orders").append(ROWS)
            location = catalog.load_table("sales.orders").metadata_location
            catalog.drop_table("sales.orders")
            catalog.register_table("sales.again", location)
            catalog.load_table("sales.again").append(ROWS)

        await client(url, register)
        assert await store.get_table("sales", "orders") is None
        assert (await registered(store, "again")).row_count == 6
