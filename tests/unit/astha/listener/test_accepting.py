"""The end of an HTTP server: requests in flight get their response, new connections are not accepted."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from aiohttp import web

from astha.listener.accepting import accepting
from astha.listener.options import Options
from tests.waiting import eventually


async def test_requests_in_flight_end_before_their_connections() -> None:
    begun, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        begun.set()
        await answer.wait()
        return web.Response(text="done")

    app = web.Application()
    app.router.add_get("/", slow)
    leave = asyncio.Event()

    async def serve(listening: socket.socket) -> None:
        async with accepting(app, [listening], Options(), shutdown_timeout_s=60):
            await leave.wait()
        listening.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        serving = asyncio.create_task(serve(listening))
        async with aiohttp.ClientSession() as client:

            async def call() -> str:
                async with client.get(url) as response:
                    return await response.text()

            calling = asyncio.create_task(call())
            await asyncio.wait_for(begun.wait(), 60)
            accepts = [task for task in asyncio.all_tasks() if task.get_name() == "accept"]
            leave.set()
            await eventually(lambda: all(task.done() for task in accepts), "no connection is accepted any more")
            assert not serving.done()
            answer.set()
            assert await asyncio.wait_for(calling, 60) == "done"
            await asyncio.wait_for(serving, 60)
            with pytest.raises(aiohttp.ClientError):
                await call()
