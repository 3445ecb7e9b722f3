from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from astha.listener.opening import http_options
from astha.settings.catalog import CatalogSettings
from components.commands.catalog.errors import CatalogError
from components.commands.catalog.security.access import OPEN, ROUTES, CatalogAccess, grants_of
from components.commands.catalog.security.grants import Grants

SECRET = "s" * 20
SETTINGS = CatalogSettings.model_validate(
    {
        "token": "t" * 20,
        "read_token": "r" * 20,
        "clients": {
            "reader": {"secret": SECRET, "grants": {"eu": "read", "us": "write"}},
            "writer": {"secret": SECRET, "grants": {"eu.shop": "write", "eu.stock": "write"}},
        },
    }
)
ACCESS = web.AppKey("access", CatalogAccess)
WRITES = {"POST", "DELETE"}
READS_BY_POST = {"/v1/namespaces/{namespace}/tables/{table}/metrics"}


@web.middleware
async def statuses(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        request.app[ACCESS].identify(request)
        await request.app[ACCESS].authorize(request)
    except CatalogError as error:
        return web.Response(status=error.status, text=str(error))
    response: web.StreamResponse = await handler(request)
    return response


async def caller(request: web.Request) -> web.Response:
    return web.Response(text=grants_of(request).caller)


@pytest.fixture
async def access() -> CatalogAccess:
    return CatalogAccess.of(SETTINGS, http_options(SETTINGS, "catalog"))


@pytest.fixture
async def client(access: CatalogAccess) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    app = web.Application(middlewares=[statuses])
    app[ACCESS] = access
    for method, path in ROUTES:
        app.router.add_route(method, path, caller)
    app.router.add_route("GET", "/v1/undeclared", caller)
    async with TestClient(TestServer(app)) as client:
        yield client


def bearer(access: CatalogAccess, name: str) -> dict[str, str]:
    static = {"token": "t" * 20, "read_token": "r" * 20}
    return {"Authorization": f"Bearer {static.get(name) or access._tokens.issue(name)}"}


def test_a_grant_covers_what_is_below_and_takes_nothing_away() -> None:
    grants = Grants("c", {"eu": "write", "eu.shop": "read", "us": "read"})
    for namespace in ("eu", "eu.shop", "eu.shop.web"):
        assert grants.allow(namespace)
        assert grants.allow(namespace, write=True)
    assert grants.allow("us.a")
    assert not grants.allow("us", write=True)
    for namespace in ("", "e", "eur", "euro.shop", "asia"):
        assert not grants.allow(namespace)
    assert Grants("c", {"*": "read"}).allow("asia")
    assert not Grants("c", {"*": "read"}).allow("asia", write=True)


@pytest.mark.parametrize("route", [route for route in ROUTES if "{namespace}" in route[1]], ids=" ".join)
async def test_a_route_needs_the_grant_of_its_namespace(
    client: TestClient[web.Request, web.Application], access: CatalogAccess, route: tuple[str, str]
) -> None:
    method, path = route
    writes = method in WRITES and path not in READS_BY_POST

    async def status(name: str, namespace: str) -> int:
        url = re.sub(r"\{(table|view)\}", "t", path).replace("{namespace}", namespace)
        async with client.request(method, url, headers=bearer(access, name)) as response:
            return response.status

    assert await status("reader", "eu%1Fshop") == (403 if writes else 200)
    assert await status("reader", "us") == 200
    assert await status("reader", "asia") == 403
    assert await status("writer", "eu") == 403
    assert await status("writer", "eu%1Fshop%1Fweb") == 200
    assert await status("read_token", "asia") == (403 if writes else 200)
    assert await status("token", "asia") == 200


async def test_requests_that_name_namespaces_in_their_body_need_the_grant_of_each(
    client: TestClient[web.Request, web.Application], access: CatalogAccess
) -> None:
    async def status(path: str, body: Any, name: str = "writer") -> int:
        async with client.post(path, json=body, headers=bearer(access, name)) as response:
            return response.status

    def named(*levels: str) -> dict[str, Any]:
        return {"namespace": levels, "name": "t"}

    mine, mine_too, foreign = named("eu", "shop"), named("eu", "stock", "a"), named("eu")
    assert await status("/v1/namespaces", {"namespace": ["eu", "shop", "new"]}) == 200
    assert await status("/v1/namespaces", {"namespace": ["eu"]}) == 403
    for path in ("/v1/tables/rename", "/v1/views/rename"):
        assert await status(path, {"source": mine, "destination": mine_too}) == 200
        assert await status(path, {"source": mine, "destination": foreign}) == 403
        assert await status(path, {"source": foreign, "destination": mine}) == 403
        assert await status(path, {"source": mine}) == 400
    changes = [{"identifier": mine, "updates": []}, {"identifier": mine_too, "requirements": []}]
    assert await status("/v1/transactions/commit", {"table-changes": changes}) == 200
    assert await status("/v1/transactions/commit", {"table-changes": [*changes, {"identifier": foreign}]}) == 403
    assert await status("/v1/transactions/commit", {"table-changes": [{"updates": []}]}) == 400
    assert await status("/v1/transactions/commit", {"table-changes": changes}, "reader") == 403


async def test_every_route_but_the_open_ones_needs_a_login(client: TestClient[web.Request, web.Application]) -> None:
    for method, path in ROUTES:
        url = re.sub(r"\{\w+\}", "eu", path)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic cmVhZGVyOnM="}):
            async with client.request(method, url, headers=headers) as response:
                assert response.status == 401, (method, path)
    async with client.get("/elsewhere") as response:
        assert response.status == 401


async def test_a_route_without_a_declaration_is_refused(
    client: TestClient[web.Request, web.Application], access: CatalogAccess
) -> None:
    async with client.get("/v1/undeclared", headers=bearer(access, "token")) as response:
        assert response.status == 403
    with pytest.raises(LookupError, match="does not declare"):
        access.require_declared("GET", "/v1/undeclared")
    for route in (*ROUTES, *OPEN):
        access.require_declared(*route)


async def test_without_tokens_and_clients_every_local_user_has_all_rights() -> None:
    settings = CatalogSettings()
    app = web.Application(middlewares=[statuses])
    app[ACCESS] = CatalogAccess.of(settings, http_options(settings, "catalog"))
    app.router.add_route("DELETE", "/v1/namespaces/{namespace}", caller)
    async with TestClient(TestServer(app)) as client, client.delete("/v1/namespaces/eu") as response:
        assert (response.status, await response.text()) == (200, "anonymous")
