"""Engines read tables through the catalog."""

from __future__ import annotations

import asyncio

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from astha.subscribers.context import LakeSettings
from tests.integration.components.commands.catalog.conftest import ROWS, Serve, create_orders


async def test_pyiceberg_reads_what_was_committed(tables: Catalog, lake: LakeSettings, serve: Serve) -> None:
    await asyncio.to_thread(create_orders, tables, lake)
    async with serve() as url:

        def read() -> None:
            rest = load_catalog("lake", type="rest", uri=url)
            assert rest.list_namespaces() == [("sales",)]
            assert rest.load_namespace_properties("sales")["owner"] == "ann"
            assert rest.list_tables("sales") == [("sales", "orders")]
            assert rest.table_exists("sales.orders")
            assert not rest.table_exists("sales.returns")
            table = rest.load_table("sales.orders")
            assert table.scan().to_arrow().num_rows == 2 * ROWS.num_rows
            tables.load_table("sales.orders").append(ROWS)
            assert table.refresh().scan().to_arrow().num_rows == 3 * ROWS.num_rows
            with pytest.raises(NoSuchTableError):
                rest.load_table("sales.returns")
            with pytest.raises(NoSuchNamespaceError):
                rest.list_tables("nothing")

        await asyncio.to_thread(read)
