"""DuckDB attaches the catalog."""

from __future__ import annotations

import asyncio

import duckdb
from pyiceberg.catalog import Catalog

from astha.subscribers.context import LakeSettings
from tests.e2e.engines import load_extensions
from tests.integration.components.commands.catalog.conftest import ROWS, Serve, create_orders


async def test_duckdb_attaches_the_catalog_and_reads_a_table(tables: Catalog, lake: LakeSettings, serve: Serve) -> None:
    await asyncio.to_thread(create_orders, tables, lake)
    async with serve() as url:

        def read() -> list[tuple[int, int]]:
            with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
                load_extensions(connection, "httpfs", "avro", "iceberg")
                connection.execute(f"ATTACH 'lake' (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')")
                query = "SELECT id, count(*) FROM lake.sales.orders GROUP BY id ORDER BY id"
                return connection.execute(query).fetchall()

        assert await asyncio.to_thread(read) == [(number, 2) for number in ROWS["id"].to_pylist()]


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
