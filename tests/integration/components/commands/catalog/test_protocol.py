"""Requests and responses, as the protocol specifies them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import ClientSession
from pyiceberg.catalog import Catalog

from astha.subscribers.context import LakeSettings
from registry.contract import MetadataStore
from registry.models import CatalogNamespace, CatalogTable
from tests.integration.components.commands.catalog.conftest import Serve, create_orders

TOKEN, READ_TOKEN = "t" * 20, "r" * 20

ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/tables/rename",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/register",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/transactions/commit",
]


async def get(http: ClientSession, url: str, **options: Any) -> tuple[int, Any]:
    async with http.get(url, **options) as response:
        return response.status, await response.json()


async def fill(store: MetadataStore, *names: str) -> None:
    """Adds rows of tables whose metadata files do not exist."""
    async with store.load() as load:
        rows = [name.rpartition(".") for name in names]
        await load.add(
            [CatalogTable("astha", space, name, f"file:///none/{name}", None, "TABLE") for space, _, name in rows]
        )


async def test_config_lists_exactly_what_is_served(serve: Serve, http: ClientSession) -> None:
    async with serve() as url:
        status, config = await get(http, f"{url}/v1/config?warehouse=lake")
        assert (status, config["endpoints"]) == (200, ENDPOINTS)
        assert config["defaults"] == config["overrides"] == {}
        for endpoint in ENDPOINTS:
            method, path = endpoint.replace("/{prefix}", "").split(" ")
            async with http.request(method, url + path.format(namespace="n", table="t")) as response:
                assert response.status in (200, 204, 400, 404), endpoint
        for method in ("POST", "PATCH", "PUT"):
            async with http.request(method, f"{url}/v1/namespaces/n", json={}) as response:
                assert response.status == 406
                assert (await response.json())["error"]["type"] == "UnsupportedOperationException"


async def test_namespaces_of_several_levels(serve: Serve, http: ClientSession, store: MetadataStore) -> None:
    await fill(store, "eu.shop.visits", "eu.shop.web.clicks", "eu.stock.items", "us.visits")
    async with serve() as url:
        assert (await get(http, f"{url}/v1/namespaces"))[1]["namespaces"] == [["eu"], ["us"]]
        found = (await get(http, f"{url}/v1/namespaces?parent=eu"))[1]["namespaces"]
        assert found == [["eu", "shop"], ["eu", "stock"]]
        found = (await get(http, f"{url}/v1/namespaces?parent=eu%1Fshop"))[1]["namespaces"]
        assert found == [["eu", "shop", "web"]]
        tables = (await get(http, f"{url}/v1/namespaces/eu%1Fshop/tables"))[1]["identifiers"]
        assert tables == [{"namespace": ["eu", "shop"], "name": "visits"}]
        assert (await get(http, f"{url}/v1/namespaces/eu"))[1] == {"namespace": ["eu"], "properties": {}}
        assert (await get(http, f"{url}/v1/namespaces/eu/tables"))[1]["identifiers"] == []
        for path in ("namespaces/e", "namespaces/e/tables", "namespaces?parent=e"):
            status, body = await get(http, f"{url}/v1/{path}")
            assert (status, body["error"]["type"]) == (404, "NoSuchNamespaceException")
        async with http.head(f"{url}/v1/namespaces/eu%1Fshop") as there, http.head(f"{url}/v1/namespaces/e") as gone:
            assert (there.status, gone.status) == (204, 404)


async def test_lists_are_paged(serve: Serve, http: ClientSession, store: MetadataStore) -> None:
    names = [f"s.t{number}" for number in range(5)] + ["a.t", "b.t"]
    await fill(store, *names)
    async with serve() as url:
        pages: list[list[str]] = []
        token: str | None = ""
        while token is not None:
            body = (await get(http, f"{url}/v1/namespaces/s/tables?pageSize=2&pageToken={token}"))[1]
            pages.append([found["name"] for found in body["identifiers"]])
            token = body["next-page-token"]
        assert pages == [["t0", "t1"], ["t2", "t3"], ["t4"]]
        body = (await get(http, f"{url}/v1/namespaces?pageSize=2"))[1]
        assert (body["namespaces"], body["next-page-token"]) == ([["a"], ["b"]], "b")
        body = (await get(http, f"{url}/v1/namespaces?pageSize=2&pageToken=b"))[1]
        assert (body["namespaces"], body["next-page-token"]) == ([["s"]], None)
        status, body = await get(http, f"{url}/v1/namespaces?pageSize=none")
        assert (status, body["error"]["type"]) == (400, "BadRequestException")


async def test_a_client_without_pages_gets_all_tables(serve: Serve, http: ClientSession, store: MetadataStore) -> None:
    await fill(store, *(f"s.t{number:04}" for number in range(2_500)))
    async with serve() as url:
        body = (await get(http, f"{url}/v1/namespaces/s/tables"))[1]
        assert [found["name"] for found in body["identifiers"]] == [f"t{number:04}" for number in range(2_500)]
        assert body["next-page-token"] is None


async def test_a_loaded_table_has_an_etag_that_changes_with_a_commit(
    serve: Serve, http: ClientSession, tables: Catalog, lake: LakeSettings
) -> None:
    await asyncio.to_thread(create_orders, tables, lake)
    async with serve() as url:
        path = f"{url}/v1/namespaces/sales/tables/orders"
        async with http.get(path) as response:
            body, tag = await response.json(), response.headers["ETag"]
        table = await asyncio.to_thread(tables.load_table, "sales.orders")
        assert body["metadata-location"] == table.metadata_location
        assert len(body["metadata"]["snapshots"]) == 2
        assert body["config"] == {}
        async with http.get(path, headers={"If-None-Match": f'"other", {tag}'}) as response:
            assert (response.status, await response.read()) == (304, b"")
        async with http.get(f"{path}?snapshots=refs", headers={"If-None-Match": tag}) as response:
            assert response.status == 200
            refs = (await response.json())["metadata"]
        assert [found["snapshot-id"] for found in refs["snapshots"]] == [refs["current-snapshot-id"]]
        assert {**refs, "snapshots": None} == {**body["metadata"], "snapshots": None}
        await asyncio.to_thread(table.append, table.scan().to_arrow())
        async with http.get(path, headers={"If-None-Match": tag}) as response:
            assert response.status == 200
        assert (await get(http, f"{path}?snapshots=some"))[0] == 400


async def test_missing_tables_and_files(serve: Serve, http: ClientSession, store: MetadataStore) -> None:
    await fill(store, "s.orders")
    async with serve() as url:
        for name, kind in (("orders", "NotFoundException"), ("returns", "NoSuchTableException")):
            status, body = await get(http, f"{url}/v1/namespaces/s/tables/{name}")
            assert (status, body["error"]["type"], body["error"]["code"]) == (404, kind, 404)
        async with http.head(f"{url}/v1/namespaces/s/tables/orders") as response:
            assert response.status == 204
        bad = ("namespaces/a%1F", "namespaces/s/tables/a%00b", "namespaces/a%00b", "namespaces/s/tables?pageToken=%00")
        for path in bad:
            status, body = await get(http, f"{url}/v1/{path}")
            assert (status, body["error"]["type"]) == (400, "BadRequestException"), path
        status, body = await get(http, f"{url}/elsewhere")
        assert (status, body["error"]["type"]) == (404, "NotFoundException")


async def test_the_properties_of_a_namespace(serve: Serve, http: ClientSession, store: MetadataStore) -> None:
    async with store.load() as load:
        await load.add(
            [CatalogNamespace("astha", "sales", "owner", "ann"), CatalogNamespace("astha", "sales", "exists", "true")]
        )
    async with serve() as url:
        body = (await get(http, f"{url}/v1/namespaces/sales"))[1]
        assert body == {"namespace": ["sales"], "properties": {"owner": "ann"}}


@pytest.mark.parametrize("token", [TOKEN, READ_TOKEN])
async def test_a_token_is_required_if_one_is_set(serve: Serve, http: ClientSession, token: str) -> None:
    async with serve(token=TOKEN, read_token=READ_TOKEN) as url:
        for path in ("/v1/config", "/v1/namespaces", "/v1/namespaces/s/tables/t", "/metrics"):
            status, body = await get(http, url + path)
            assert (status, body["error"]["type"]) == (401, "NotAuthorizedException")
            assert "catalog.token" in body["error"]["message"]
            status, body = await get(http, url + path, headers={"Authorization": "Bearer wrong"})
            assert (status, body["error"]["type"]) == (401, "NotAuthorizedException")
        assert (await get(http, f"{url}/v1/config", headers={"Authorization": f"Bearer {token}"}))[0] == 200
        assert (await get(http, f"{url}/livez"))[0] == (await get(http, f"{url}/readyz"))[0] == 200


async def test_a_page_of_another_site_is_refused(serve: Serve, http: ClientSession) -> None:
    async with serve() as url:
        status, body = await get(http, f"{url}/v1/config", headers={"Host": "evil.example"})
        assert (status, body["error"]["type"]) == (403, "ForbiddenException")
        assert "catalog.allowed_hosts" in body["error"]["message"]


async def test_requests_are_counted_by_route(serve: Serve, http: ClientSession) -> None:
    async with serve() as url:
        await get(http, f"{url}/v1/namespaces/a/tables/b")
        await get(http, f"{url}/v1/namespaces/c/tables/d")
        async with http.get(f"{url}/metrics") as response:
            page = await response.text()
        route = "/v1/namespaces/{namespace}/tables/{table}"
        assert f'astha_catalog_requests_total{{method="GET",route="{route}",status="404"}} 2.0' in page


async def test_credentials_are_given_only_if_that_is_switched_on(
    serve: Serve, http: ClientSession, tables: Catalog, lake: LakeSettings, url: str
) -> None:
    await asyncio.to_thread(create_orders, tables, lake)
    s3 = {"endpoint": "http://127.0.0.1:9", "access_key": "name", "secret_key": "secret"}
    with_s3 = lake.model_copy(update={"s3": type(lake.s3).model_validate(s3)})
    for vend, expected in ((False, {}), (True, {"s3.access-key-id": "name", "s3.secret-access-key": "secret"})):
        async with serve(lake=with_s3, vend_credentials=vend) as address:
            body = (await get(http, f"{address}/v1/namespaces/sales/tables/orders"))[1]
            assert {name: value for name, value in body["config"].items() if "key" in name} == expected
