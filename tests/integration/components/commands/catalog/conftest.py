"""A lake with tables, and the catalog that serves them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pytest
from aiohttp import ClientSession
from pyiceberg.catalog import Catalog
from yarl import URL

from astha.settings import Settings
from astha.subscribers.context import LakeSettings
from components.commands.catalog.process import running
from components.lib.lake.iceberg import open_catalog
from registry.contract import MetadataStore

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
NEW: dict[str, Any] = {"name": "orders", "schema": SCHEMA}


@pytest.fixture
async def tables(store: MetadataStore, lake: LakeSettings, url: str) -> AsyncIterator[Catalog]:
    """The same catalog through PyIceberg, to write with."""
    catalog = await asyncio.to_thread(open_catalog, url, lake)
    yield catalog
    await asyncio.to_thread(catalog.close)


@pytest.fixture
def serve(store: MetadataStore, lake: LakeSettings, url: str) -> Serve:
    """Serves the registry. Keyword arguments are settings of the catalog."""
    default = lake

    @asynccontextmanager
    async def serve(lake: LakeSettings = default, **settings: Any) -> AsyncIterator[str]:
        found = Settings.model_validate({"registry": {"url": url}, "lake": lake, "catalog": {"port": 0, **settings}})
        async with running(found) as catalog:
            yield catalog.url

    return serve


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


def create_orders(catalog: Catalog, lake: LakeSettings) -> None:
    """A table `sales.orders` with two snapshots."""
    catalog.create_namespace("sales", {"owner": "ann"})
    table = catalog.create_table("sales.orders", ROWS.schema, location=f"file://{lake.warehouse}/sales/orders")
    table.append(ROWS)
    table.append(ROWS)


async def ask(http: ClientSession, method: str, url: str, **options: Any) -> tuple[int, Any]:
    """Returns status and decoded body; None if it has none."""
    async with http.request(method, URL(url, encoded=True), **options) as response:
        content = await response.read()
        return response.status, msgspec.json.decode(content) if content else None


@pytest.fixture
async def served(serve: Serve, http: ClientSession) -> AsyncIterator[str]:
    """A catalog with the namespace `sales` and the tables `orders` and `returns`; the address of the namespace."""
    async with serve() as address:
        await ask(http, "POST", f"{address}/v1/namespaces", json={"namespace": ["sales"]})
        for name in ("orders", "returns"):
            assert (await ask(http, "POST", f"{address}/v1/namespaces/sales/tables", json={**NEW, "name": name}))[
                0
            ] == 200
        yield f"{address}/v1/namespaces/sales"
