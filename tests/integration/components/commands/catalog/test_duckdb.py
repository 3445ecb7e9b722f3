"""DuckDB attaches the catalog, reads and writes."""

from __future__ import annotations

import asyncio

import duckdb
from pyiceberg.catalog import Catalog

from astha.subscribers.context import ComponentContext, LakeSettings
from registry.contract import MetadataStore
from tests.e2e.engines import load_extensions
from tests.integration.components.commands.catalog.conftest import ROWS, Serve, create_orders
from tests.integration.components.commands.catalog.daemon import require_equal
from tests.integration.components.commands.catalog.duckdb_client import attach
from tests.integration.components.commands.catalog.test_writers import client, commits, registered


async def test_duckdb_attaches_the_catalog_and_reads_a_table(tables: Catalog, lake: LakeSettings, serve: Serve) -> None:
    await asyncio.to_thread(create_orders, tables, lake)
    async with serve() as url:

        def read() -> list[tuple[int, int]]:
            with attach(url) as connection:
                query = "SELECT id, count(*) FROM lake.sales.orders GROUP BY id ORDER BY id"
                return connection.execute(query).fetchall()

        assert await asyncio.to_thread(read) == [(number, 2) for number in ROWS["id"].to_pylist()]


async def test_duckdb_writes(serve: Serve, store: MetadataStore, context: ComponentContext) -> None:
    async with serve() as url:

        def write() -> list[tuple[int, str]]:
            # Its LocalFileSystem creates no directories, so the server must create the table before the rows.
            with attach(url, ", STAGE_CREATE_TABLES false") as lake:
                lake.execute("CREATE SCHEMA lake.sales")
                lake.execute("CREATE TABLE lake.sales.orders AS SELECT i AS id, 'n' AS name FROM range(6) AS r(i)")
                lake.execute("INSERT INTO lake.sales.orders VALUES (10, 'new'), (11, 'new')")
                lake.execute("DELETE FROM lake.sales.orders WHERE id IN (1, 2)")
                lake.execute("UPDATE lake.sales.orders SET name = 'changed' WHERE id = 3")
                lake.execute(
                    "MERGE INTO lake.sales.orders AS t USING (SELECT unnest([4, 12]) AS id) AS s ON t.id = s.id "
                    "WHEN MATCHED THEN UPDATE SET name = 'merged' WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'merged')"
                )
                return lake.execute("SELECT id, name FROM lake.sales.orders ORDER BY id").fetchall()

        expected = [(0, "n"), (3, "changed"), (4, "merged"), (5, "n"), (10, "new"), (11, "new"), (12, "merged")]
        assert await asyncio.to_thread(write) == expected
        seen = await commits(store)
        assert [row.operation for row in seen] == ["metadata", "append", "append", "delete", "overwrite", "overwrite"]
        assert all("duckdb" in (row.engine or "") for row in seen)
        table = await registered(store)
        deleted = await store.list_delete_files(table.id)
        assert table.row_count - sum(file.row_count for file in deleted) == len(expected)
        found = await client(url, lambda catalog: catalog.load_table("sales.orders").scan().to_arrow())
        assert sorted(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True)) == expected
        await require_equal(context)


async def test_duckdb_logs_in(tables: Catalog, lake: LakeSettings, serve: Serve) -> None:
    await asyncio.to_thread(create_orders, tables, lake)
    secret = "a-secret-of-some-length"
    async with serve(clients={"duck": {"secret": secret, "grants": {"sales": "read"}}}) as url:

        def count() -> int:
            with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
                load_extensions(connection, "httpfs", "avro", "iceberg")
                connection.execute(
                    f"CREATE SECRET login (TYPE iceberg, CLIENT_ID 'duck', CLIENT_SECRET '{secret}', "
                    f"OAUTH2_SERVER_URI '{url}/v1/oauth/tokens')"
                )
                connection.execute(f"ATTACH 'lake' (TYPE iceberg, ENDPOINT '{url}', SECRET login)")
                (found,) = connection.execute("SELECT count(*) FROM lake.sales.orders").fetchall()
                return int(found[0])

        assert await asyncio.to_thread(count) == 2 * ROWS.num_rows
