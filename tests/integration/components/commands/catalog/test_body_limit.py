"""Bodies of requests share a bounded part of the memory."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import ClientSession
from yarl import URL

from components.commands.catalog import body_limit
from tests.integration.components.commands.catalog.conftest import Serve, ask
from tests.waiting import eventually

LIMIT = 100_000


@pytest.mark.parametrize("length", [f"Content-Length: {LIMIT}", "Transfer-Encoding: chunked"])
async def test_a_body_that_finds_no_room_is_refused(
    serve: Serve, http: ClientSession, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    monkeypatch.setattr(body_limit, "_WAIT_S", 0.2)
    async with serve(max_bodies_bytes=LIMIT) as url:
        names = iter(range(10_000))

        async def create() -> int:
            status, _ = await ask(http, "POST", f"{url}/v1/namespaces", json={"namespace": [f"n{next(names)}"]})
            return status

        assert await create() == 200
        address = URL(url)
        _, slow = await asyncio.open_connection(address.host, address.port)
        head = f"POST /v1/namespaces HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n{length}\r\n\r\n"
        slow.write(head.encode())
        await slow.drain()

        async def refused() -> bool:
            return await create() == 503

        async def served() -> bool:
            return await create() == 200

        await eventually(refused, "a body without room")
        assert (await ask(http, "GET", f"{url}/v1/namespaces"))[0] == 200, "requests without a body need none"
        slow.close()
        await eventually(served, "room after the client has gone")


async def test_a_body_larger_than_the_limit_is_served_alone(serve: Serve, http: ClientSession) -> None:
    async with serve(max_bodies_bytes=10) as url:
        requests = (ask(http, "POST", f"{url}/v1/namespaces", json={"namespace": [f"n{n}"]}) for n in range(8))
        assert {status for status, _ in await asyncio.gather(*requests)} == {200}


async def test_an_unknown_caller_takes_no_room(serve: Serve, http: ClientSession) -> None:
    token = {"Authorization": "Bearer " + "t" * 20}
    async with serve(max_bodies_bytes=LIMIT, token="t" * 20) as url:
        address = URL(url)
        reader, slow = await asyncio.open_connection(address.host, address.port)
        head = f"POST /v1/namespaces HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nContent-Length: {LIMIT}\r\n\r\n"
        slow.write(head.encode())
        assert b" 401 " in await reader.readline()
        body = {"namespace": ["sales"]}
        assert (await ask(http, "POST", f"{url}/v1/namespaces", json=body, headers=token))[0] == 200
        slow.close()
