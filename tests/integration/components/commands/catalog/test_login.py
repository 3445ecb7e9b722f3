"""Clients log in with OAuth2 client credentials, and see what they are granted."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import ClientSession
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, OAuthError, UnauthorizedError

from astha.subscribers.context import LakeSettings
from components.commands.catalog.security.login_limit import BURST
from components.commands.catalog.security.tokens import Tokens
from registry.contract import MetadataStore
from tests.integration.components.commands.catalog.conftest import ROWS, Serve, create_orders
from tests.integration.components.commands.catalog.test_protocol import fill, get

SECRET = "a secret: with % + and ünicode"
KEY = "k" * 40
CLIENTS = {
    "spark": {"secret": SECRET, "grants": {"sales": "read", "eu.shop": "write"}},
    "other": {"secret": "another-secret-entirely", "grants": {}},
}
LOGIN = "/v1/oauth/tokens"
GRANT = {"grant_type": "client_credentials"}
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


def basic(credential: str) -> str:
    return "Basic " + base64.b64encode(credential.encode()).decode()


async def log_in(http: ClientSession, url: str, **form: str) -> tuple[int, Any]:
    async with http.post(url + LOGIN, data=GRANT | form) as response:
        assert response.headers["Cache-Control"] == "no-store"
        return response.status, await response.json()


async def token_of(http: ClientSession, url: str, client: str) -> str:
    status, body = await log_in(http, url, client_id=client, client_secret=str(CLIENTS[client]["secret"]))
    assert status == 200
    token: str = body["access_token"]
    return token


async def test_a_token_for_the_secret_in_the_body_or_in_the_header(serve: Serve, http: ClientSession) -> None:
    async with serve(clients=CLIENTS, token_lifetime_s=77) as url:
        status, body = await log_in(http, url, client_id="spark", client_secret=SECRET, scope="PRINCIPAL_ROLE:ALL")
        token = body.pop("access_token")
        assert (status, body) == (
            200,
            {
                "token_type": "bearer",
                "expires_in": 77,
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
                "scope": "catalog",
            },
        )
        headers = {"Authorization": f"Bearer {token}"}
        assert (await get(http, f"{url}/v1/config", headers=headers))[0] == 200
        for header in (basic(f"spark:{SECRET}"), basic("spark:a+secret%3A+with+%25+%2B+and+%C3%BCnicode")):
            async with http.post(url + LOGIN, data=GRANT, headers={"Authorization": header}) as response:
                assert response.status == 200, await response.text()
        async with http.post(
            url + LOGIN, data=GRANT | {"client_id": "spark", "client_secret": SECRET}, headers=headers
        ) as response:
            assert response.status == 200  # PyIceberg sends its old token along


async def test_refused_logins(serve: Serve, http: ClientSession) -> None:
    async with serve(clients=CLIENTS) as url:
        for form in ({"client_id": "spark", "client_secret": "wrong"}, {"client_id": "nn", "client_secret": SECRET},
                     {"client_id": "other", "client_secret": SECRET}, {"client_secret": SECRET}, {}):  # fmt: skip
            status, body = await log_in(http, url, **form)
            assert (status, body["error"]) == (401, "invalid_client")
        for grant in ("password", "refresh_token", EXCHANGE):
            status, body = await log_in(http, url, grant_type=grant, client_id="spark", client_secret=SECRET)
            assert (status, body["error"]) == (400, "unsupported_grant_type")
        requests: list[dict[str, Any]] = [
            {"data": {"client_id": "spark"}},
            {"data": {**GRANT, "padding": "a" * 20_000}},
            {"json": GRANT},
            {"data": b"grant_type=%ff", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
            {"data": b"a=1&a=2", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        ]
        for request in requests:
            async with http.post(url + LOGIN, **request) as response:
                assert (response.status, (await response.json())["error"]) == (400, "invalid_request")
        for header in ("Basic ?", basic("spark"), "Basic /w=="):
            async with http.post(url + LOGIN, data=GRANT, headers={"Authorization": header}) as response:
                assert (response.status, (await response.json())["error"]) == (401, "invalid_client")


async def test_there_is_no_login_without_clients(serve: Serve, http: ClientSession) -> None:
    async with serve() as url, http.post(url + LOGIN, data=GRANT) as response:
        assert response.status == 406


async def test_a_token_is_renewed_only_with_the_secret(serve: Serve, http: ClientSession) -> None:
    """As Iceberg's Java client does it: with the token first, then with its credential."""
    async with serve(clients=CLIENTS) as url:
        token, foreign = await token_of(http, url, "spark"), await token_of(http, url, "other")

        async def exchange(subject: str, authorization: str, **more: str) -> tuple[int, Any]:
            form = {"grant_type": EXCHANGE, "subject_token": subject, **more}
            form["subject_token_type"] = "urn:ietf:params:oauth:token-type:access_token"
            async with http.post(url + LOGIN, data=form, headers={"Authorization": authorization}) as response:
                return response.status, await response.json()

        credential, wrong = basic(f"spark:{SECRET}"), basic("spark:wrong")
        assert (await exchange(token, f"Bearer {token}"))[1]["error"] == "unsupported_grant_type"
        assert (await exchange(token, wrong))[1]["error"] == "invalid_client"
        assert (await exchange(foreign, credential))[1]["error"] == "unsupported_grant_type"
        assert (await exchange(token, credential, actor_token=foreign))[1]["error"] == "unsupported_grant_type"
        status, body = await exchange(token, credential)
        assert (status, body["expires_in"]) == (200, 900)


async def test_guesses_are_slowed_down(serve: Serve, http: ClientSession) -> None:
    async with serve(clients=CLIENTS) as url:

        async def guess(number: int) -> int:
            return (await log_in(http, url, client_id="spark", client_secret=f"guess {number}"))[0]

        statuses = await asyncio.gather(*(guess(number) for number in range(5 * BURST)))
        assert statuses.count(401) >= BURST
        assert statuses.count(429) > 0
        async with http.post(url + LOGIN, data=GRANT | {"client_id": "spark", "client_secret": "x"}) as response:
            assert response.status == 401 or int(response.headers["Retry-After"]) >= 1
        await token_of(http, url, "other")


async def test_lists_contain_what_the_client_may_read(serve: Serve, http: ClientSession, store: MetadataStore) -> None:
    await fill(store, "sales.orders", "eu.shop.visits", "eu.shop.web.clicks", "eu.stock.items", "us.visits")
    async with serve(clients=CLIENTS, token="t" * 20) as url:

        async def listed(token: str, query: str = "") -> Any:
            headers = {"Authorization": f"Bearer {token}"}
            status, body = await get(http, f"{url}/v1/namespaces{query}", headers=headers)
            return body["namespaces"] if status == 200 else status

        spark, other = await token_of(http, url, "spark"), await token_of(http, url, "other")
        assert await listed(spark) == [["eu"], ["sales"]]
        assert await listed(spark, "?parent=eu") == [["eu", "shop"]]
        assert await listed(spark, "?parent=eu%1Fshop") == [["eu", "shop", "web"]]
        assert await listed(spark, "?parent=us") == 404
        assert await listed(other) == []
        assert await listed("t" * 20) == [["eu"], ["sales"], ["us"]]
        headers = {"Authorization": f"Bearer {spark}"}
        tables = f"{url}/v1/namespaces/%s/tables"
        assert (await get(http, tables % "eu%1Fshop", headers=headers))[0] == 200
        for namespace in ("us", "eu", "eu%1Fstock", "missing"):
            status, body = await get(http, tables % namespace, headers=headers)
            assert (status, body["error"]["type"]) == (403, "ForbiddenException")
            assert body["error"]["message"].startswith("spark may not read the namespace")


async def test_storage_credentials_only_for_a_table_that_the_client_may_read(
    serve: Serve, http: ClientSession, tables: Catalog, lake: LakeSettings
) -> None:
    await asyncio.to_thread(create_orders, tables, lake)
    s3 = {"endpoint": "http://127.0.0.1:9", "access_key": "name", "secret_key": "secret"}
    with_s3 = lake.model_copy(update={"s3": type(lake.s3).model_validate(s3)})
    async with serve(lake=with_s3, vend_credentials=True, clients=CLIENTS) as url:
        orders = f"{url}/v1/namespaces/sales/tables/orders"
        for client, expected in (("spark", 200), ("other", 403)):
            headers = {"Authorization": f"Bearer {await token_of(http, url, client)}"}
            status, body = await get(http, orders, headers=headers)
            assert status == expected
            assert body.get("config", {}).get("s3.secret-access-key") == ("secret" if expected == 200 else None)


async def test_pyiceberg_logs_in_and_renews_an_expired_token_by_itself(
    serve: Serve, tables: Catalog, lake: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(create_orders, tables, lake)
    lifetimes = [900, 0, 900]  # the first is for the configuration
    issue = Tokens.issue

    def issued(self: Tokens, client: str) -> str:
        monkeypatch.setattr(self, "lifetime_s", lifetimes.pop(0))
        return issue(self, client)

    monkeypatch.setattr(Tokens, "issue", issued)
    async with serve(clients=CLIENTS) as url:
        server = {"uri": url, "oauth2-server-uri": url + LOGIN}

        def use() -> None:
            rest = RestCatalog("lake", **server, credential=f"spark:{SECRET}")
            assert len(lifetimes) == 1
            assert rest.list_namespaces() == [("sales",)]
            assert not lifetimes
            assert rest.load_table("sales.orders").scan().to_arrow().num_rows == 2 * ROWS.num_rows
            with pytest.raises(ForbiddenError, match="spark may not read the namespace us"):
                rest.list_tables("us")
            with pytest.raises(OAuthError, match="invalid_client"):
                RestCatalog("lake", **server, credential="spark:wrong")
            with pytest.raises(UnauthorizedError):
                RestCatalog("lake", **server, token="wrong")

        await asyncio.to_thread(use)


async def test_pyiceberg_writes_where_it_is_granted(serve: Serve, lake: LakeSettings) -> None:
    async with serve(clients=CLIENTS, token="t" * 20, read_token="r" * 20) as url:
        server = {"uri": url, "oauth2-server-uri": url + LOGIN}

        def use() -> None:
            owner = RestCatalog("lake", **server, token="t" * 20)
            for namespace in ("sales", "us"):
                owner.create_namespace(namespace)
            owner.create_table("sales.orders", ROWS.schema)
            rest = RestCatalog("lake", **server, credential=f"spark:{SECRET}")
            rest.create_namespace("eu.shop")
            rest.create_table("eu.shop.visits", ROWS.schema).append(ROWS)
            assert rest.load_table("eu.shop.visits").scan().to_arrow().num_rows == ROWS.num_rows
            orders = rest.load_table("sales.orders")
            reader = RestCatalog("lake", **server, token="r" * 20)
            attempts: list[Callable[[], object]] = [
                lambda: orders.append(ROWS),
                lambda: rest.create_namespace("us.new"),
                lambda: rest.create_table("us.visits", ROWS.schema),
                lambda: rest.rename_table("eu.shop.visits", "us.visits"),
                lambda: rest.rename_table("sales.orders", "eu.shop.orders"),
                lambda: rest.drop_table("sales.orders"),
                lambda: rest.update_namespace_properties("sales", updates={"owner": "spark"}),
                lambda: rest.register_table("us.copy", orders.metadata_location),
                lambda: reader.drop_table("sales.orders"),
            ]
            for attempt in attempts:
                with pytest.raises(ForbiddenError):
                    attempt()
            assert owner.load_table("sales.orders").current_snapshot() is None
            assert owner.list_tables("us") == []
            rest.drop_table("eu.shop.visits")

        await asyncio.to_thread(use)


async def test_processes_with_one_key_accept_each_others_tokens(serve: Serve, http: ClientSession) -> None:
    async with (
        serve(clients=CLIENTS, token_key=KEY) as one,
        serve(clients=CLIENTS, token_key=KEY) as two,
        serve(clients=CLIENTS) as stranger,
    ):
        headers = {"Authorization": f"Bearer {await token_of(http, one, 'spark')}"}
        assert (await get(http, f"{one}/v1/config", headers=headers))[0] == 200
        assert (await get(http, f"{two}/v1/config", headers=headers))[0] == 200
        status, body = await get(http, f"{stranger}/v1/config", headers=headers)
        assert (status, body["error"]["type"]) == (401, "NotAuthorizedException")
