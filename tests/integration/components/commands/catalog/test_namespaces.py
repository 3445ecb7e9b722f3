"""Namespaces are created, changed and dropped through the catalog."""

from __future__ import annotations

import asyncio
import io
from typing import Any
from uuid import uuid4

from aiohttp import ClientSession

from registry.contract import MetadataStore
from tests.integration.components.commands.catalog.conftest import Serve, ask


async def test_a_namespace_is_created_and_dropped(serve: Serve, http: ClientSession) -> None:
    async with serve() as url:
        spaces = f"{url}/v1/namespaces"
        body = {"namespace": ["eu", "shop"], "properties": {"owner": "ann"}}
        assert await ask(http, "POST", spaces, json=body) == (200, body)
        assert (await ask(http, "GET", spaces))[1]["namespaces"] == [["eu"]]
        assert await ask(http, "GET", f"{spaces}/eu%1Fshop") == (200, body)
        assert (await ask(http, "HEAD", f"{spaces}/eu%1Fshop"))[0] == 204
        status, error = await ask(http, "POST", spaces, json=body)
        assert (status, error["error"]["type"]) == (409, "AlreadyExistsException")
        assert error["error"]["message"].startswith("Namespace already exists: eu.shop")
        status, error = await ask(http, "DELETE", f"{spaces}/eu")
        assert (status, error["error"]["type"]) == (409, "NamespaceNotEmptyException")
        assert (await ask(http, "DELETE", f"{spaces}/eu%1Fshop"))[0] == 204
        status, error = await ask(http, "DELETE", f"{spaces}/eu%1Fshop")
        assert (status, error["error"]["type"]) == (404, "NoSuchNamespaceException")


async def test_properties_are_set_and_removed(serve: Serve, http: ClientSession) -> None:
    async with serve() as url:
        spaces = f"{url}/v1/namespaces"
        await ask(http, "POST", spaces, json={"namespace": ["n"], "properties": {"a": "1", "b": "2"}})
        change = {"updates": {"b": "3", "c": "4"}, "removals": ["a", "z"]}
        expected = {"updated": ["b", "c"], "removed": ["a"], "missing": ["z"]}
        assert await ask(http, "POST", f"{spaces}/n/properties", json=change) == (200, expected)
        assert (await ask(http, "GET", f"{spaces}/n"))[1]["properties"] == {"b": "3", "c": "4"}
        status, error = await ask(
            http, "POST", f"{spaces}/n/properties", json={"updates": {"b": "1"}, "removals": ["b"]}
        )
        assert (status, error["error"]["type"]) == (422, "UnprocessableEntityException")
        status, error = await ask(http, "POST", f"{spaces}/missing/properties", json=change)
        assert (status, error["error"]["type"]) == (404, "NoSuchNamespaceException")


MALFORMED = [
    b"",
    b"[]",
    b"{",
    b'{"namespace": "n"}',
    b'{"namespace": []}',
    b'{"namespace": [""]}',
    b'{"namespace": ["a.b"]}',
    b'{"namespace": ["a/b"]}',
    b'{"namespace": ["a\\u0000b"]}',
    b'{"namespace": ["a\\u001fb"]}',
    b'{"namespace": ["\\ud800"]}',
    b'{"namespace": ["' + b"n" * 300 + b'"]}',
    b'{"namespace": ["n"], "properties": {"a": 1}}',
    b'{"namespace": ["n"], "properties": {"exists": "1"}}',
    b'{"namespace": ["n"], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"namespace": ["n"], "x": "' + b"x" * (17 << 20) + b'"}',
    b"\xff\xfe",
]


async def test_a_malformed_namespace_is_refused(serve: Serve, http: ClientSession, store: MetadataStore) -> None:
    async with serve() as url:
        for body in MALFORMED:
            status, error = await ask(http, "POST", f"{url}/v1/namespaces", data=io.BytesIO(body))
            assert (status, error["error"]["type"]) == (400, "BadRequestException"), body[:80]
    assert await store.list_catalog_namespaces("astha") == []


async def test_a_repeated_request_takes_effect_once(serve: Serve, http: ClientSession) -> None:
    async with serve() as url, serve() as other:
        spaces, body = f"{url}/v1/namespaces", {"namespace": ["n"]}
        key: dict[str, Any] = {"headers": {"Idempotency-Key": str(uuid4())}}
        answers = await asyncio.gather(
            *(ask(http, "POST", f"{where}/v1/namespaces", json=body, **key) for where in (url, other, url))
        )
        assert {status for status, _ in answers} == {200}
        status, error = await ask(http, "POST", spaces, json={"namespace": ["m"]}, **key)
        assert (status, error["error"]["type"]) == (422, "UnprocessableEntityException")
        drop: dict[str, Any] = {"headers": {"Idempotency-Key": str(uuid4())}}
        for _ in range(2):
            assert (await ask(http, "DELETE", f"{spaces}/n", **drop))[0] == 204
        status, error = await ask(http, "POST", spaces, json=body, headers={"Idempotency-Key": "no uuid"})
        assert (status, error["error"]["type"]) == (400, "BadRequestException")
