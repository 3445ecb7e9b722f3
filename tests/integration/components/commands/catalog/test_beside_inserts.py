"""PyIceberg writes through the catalog beside our own inserts, while a daemon follows."""

from __future__ import annotations

import asyncio

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import LongType

from astha.subscribers.context import ComponentContext
from components.lib.storage_manager import StorageManager
from registry.contract import MetadataStore
from tests.fixtures.daemons import RunDaemon
from tests.integration.components.commands.catalog.conftest import Serve
from tests.integration.components.commands.catalog.daemon import iceberg_daemon, require_equal
from tests.integration.components.commands.catalog.test_writers import client, create, registered

SPARSE = 100
"""Ids of our own rows are multiples, those of the client are not."""


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids]})


def retried(catalog: Catalog, work: str, argument: object) -> None:
    """PyIceberg repeats appends by itself; what it does not repeat is repeated here."""
    while True:
        try:
            getattr(catalog.load_table("sales.orders"), work)(argument)
            return
        except CommitFailedException:
            continue


async def test_both_write_one_table(
    serve: Serve, store: MetadataStore, context: ComponentContext, manager: StorageManager, run_daemon: RunDaemon
) -> None:
    running = await iceberg_daemon(run_daemon, context)
    async with serve() as url:
        await client(url, create)

        def write(catalog: Catalog) -> None:
            for number in range(5):
                retried(catalog, "append", rows(2 * number + 1, 2 * number + 2))
            retried(catalog, "delete", "id = 3")

        async def insert() -> None:
            for number in range(5):
                await manager.insert("sales.orders", rows(number * SPARSE + SPARSE), sync=True)

        await asyncio.gather(client(url, write), insert())
        expected = [*(number for number in range(1, 11) if number != 3), *range(SPARSE, 6 * SPARSE, SPARSE)]

        def ids() -> list[int]:
            table = load_catalog("lake", type="rest", uri=url).load_table("sales.orders")
            found: list[int] = sorted(table.scan().to_arrow()["id"].to_pylist())
            return found

        async def all_are_read() -> bool:
            return await asyncio.to_thread(ids) == expected

        await running.until(all_are_read, "every row once")
        assert (await registered(store)).row_count == len(expected)

        def evolve(catalog: Catalog) -> None:
            with catalog.load_table("sales.orders").update_schema() as update:
                update.add_column("amount", LongType())
            retried(catalog, "append", pa.table({"id": [11], "name": ["n"], "amount": [1]}))

        await client(url, evolve)
        await manager.insert("sales.orders", pa.table({"id": [1_000], "name": ["n"], "amount": [2]}), sync=True)
        expected = sorted([*expected, 11, 1_000])
        await running.until(all_are_read, "every row once after the change of columns")
        await require_equal(context)
        await client(url, lambda catalog: catalog.rename_table("sales.orders", "sales.renamed"))
        await manager.insert("sales.renamed", pa.table({"id": [2_000], "name": ["n"], "amount": [2]}), sync=True)
        await require_equal(context)
        await client(url, lambda catalog: catalog.drop_table("sales.renamed"))
        assert await store.list_tables() == []
