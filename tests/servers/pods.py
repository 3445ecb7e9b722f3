"""The part of Kubernetes' API that Spark's driver uses; pods are processes of this machine.

It stands in for a cluster where none can be had: requests of the real client, the environment and the command of the
pods that it creates, and the processes are real. Scheduling, images, volumes and network policies are not.
"""

from __future__ import annotations

import asyncio
import copy
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import WSMsgType, web

Pod = dict[str, Any]

_ADDRESS = "127.0.0.1"
_FIELDS = {"status.podIP": _ADDRESS}
_LIST = "/api/v1/namespaces/{namespace}/pods"


class PodServer:
    """`created` are the pods as the client sent them, `requests` all methods and paths; others than for pods fail."""

    def __init__(self, directory: Path, driver: str, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = environment
        self._versions = count(1)
        self._watchers: set[asyncio.Queue[Pod]] = set()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._runner: web.AppRunner | None = None
        self.pods: dict[str, Pod] = {driver: _running({"metadata": {"name": driver, "uid": "driver"}, "spec": {}})}
        self.created: list[Pod] = []
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes(
            [
                web.post(_LIST, self._create),
                web.get(_LIST, self._list),
                web.delete(_LIST, self._delete_all),
                web.get(_LIST + "/{name}", self._get),
                web.patch(_LIST + "/{name}", self._patch),
                web.delete(_LIST + "/{name}", self._delete),
                web.route("*", "/{path:.*}", self._forbid),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, _ADDRESS, 0)
        await site.start()
        self.url = f"http://{_ADDRESS}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in list(self._processes):
            await self._end(name)
        if self._runner is not None:
            await self._runner.cleanup()

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._directory.glob("*.log")))

    async def _create(self, request: web.Request) -> web.Response:
        self._note(request)
        pod = await request.json()
        self.created.append(copy.deepcopy(pod))
        name = pod["metadata"]["name"]
        pod["metadata"].update(uid=name, namespace=request.match_info["namespace"])
        self._start(name, pod)
        self.pods[name] = _running(pod)
        self._tell("ADDED", self.pods[name])
        return web.json_response(self._versioned(pod), status=201)

    def _start(self, name: str, pod: Pod) -> None:
        [container] = pod["spec"]["containers"]
        given = {variable["name"]: _value(variable, name) for variable in container.get("env", [])}
        with (self._directory / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*container["command"], *container["args"]],
                env={**self._environment, **given, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                stdout=log, stderr=subprocess.STDOUT, cwd=self._directory,
            )  # fmt: skip

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        if request.query.get("watch") == "true":
            return await self._watch(request)
        found = [self._versioned(pod) for pod in self._selected(request)]
        metadata = {"resourceVersion": str(next(self._versions))}
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": found})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        news: asyncio.Queue[Pod] = asyncio.Queue()
        self._watchers.add(news)
        sending = asyncio.create_task(_send(socket, news))
        try:
            async for message in socket:
                if message.type is WSMsgType.ERROR:
                    break
        finally:
            sending.cancel()
            self._watchers.discard(news)
        return socket

    async def _get(self, request: web.Request) -> web.Response:
        self._note(request)
        pod = self.pods.get(request.match_info["name"])
        return web.json_response(self._versioned(pod)) if pod else _missing()

    async def _patch(self, request: web.Request) -> web.Response:
        self._note(request)
        pod = self.pods.get(request.match_info["name"])
        if pod is None:
            return _missing()
        labels = (await request.json()).get("metadata", {}).get("labels", {})
        pod["metadata"].setdefault("labels", {}).update(labels)
        return web.json_response(self._versioned(pod))

    async def _delete(self, request: web.Request) -> web.Response:
        self._note(request)
        name = request.match_info["name"]
        if name not in self.pods:
            return _missing()
        await self._end(name)
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def _delete_all(self, request: web.Request) -> web.Response:
        self._note(request)
        for pod in self._selected(request):
            await self._end(pod["metadata"]["name"])
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def _forbid(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403}, status=403)

    async def _end(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait, 10)
        pod = self.pods.pop(name, None)
        if pod is not None:
            self._tell("DELETED", pod)

    def _selected(self, request: web.Request) -> list[Pod]:
        wanted = dict(part.split("=", 1) for part in request.query.get("labelSelector", "").split(",") if "=" in part)
        return [pod for pod in self.pods.values() if wanted.items() <= pod["metadata"].get("labels", {}).items()]

    def _tell(self, kind: str, pod: Pod) -> None:
        for news in self._watchers:
            news.put_nowait({"type": kind, "object": self._versioned(pod)})

    def _versioned(self, pod: Pod) -> Pod:
        metadata = {**pod["metadata"], "resourceVersion": str(next(self._versions))}
        return {"kind": "Pod", "apiVersion": "v1", **pod, "metadata": metadata}

    def _note(self, request: web.Request) -> None:
        self.requests.append((request.method, request.path))


async def _send(socket: web.WebSocketResponse, news: asyncio.Queue[Pod]) -> None:
    with suppress(ConnectionError):
        while True:
            await socket.send_json(await news.get())


def _running(pod: Pod) -> Pod:
    containers = [
        {"name": each["name"], "ready": True, "restartCount": 0, "state": {"running": {}}, "image": "", "imageID": ""}
        for each in pod["spec"].get("containers", [])
    ]
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": _ADDRESS, "conditions": ready, "containerStatuses": containers}
    return {**pod, "status": status}


def _value(variable: Mapping[str, Any], name: str) -> str:
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    return {**_FIELDS, "metadata.name": name}[variable["valueFrom"]["fieldRef"]["fieldPath"]]


def _missing() -> web.Response:
    return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}, status=404)
