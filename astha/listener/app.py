"""Routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec
from aiohttp import web

from astha.listener.auth import Access
from astha.listener.connections import Connections
from astha.listener.link import Batch, Figures, Reply, Routes, Watch
from astha.listener.options import Options
from astha.listener.queries import DaemonSilent, Questions
from astha.listener.watchers import Watcher, Watchers

log = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 5.0
_ACT_WITHIN_S = 8.0
_BEAT_S = 0.5
_BEATS_TO_DAEMON = 6
_LONGEST_REQUEST_BYTES = 16 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Ready(msgspec.Struct, frozen=True):
    ready: bool
    role: str
    reasons: list[str]


class Listener:
    """Answers requests with what the daemon says. `send` puts a frame on the link to it."""

    def __init__(self, options: Options, send: Callable[[msgspec.Struct], None]) -> None:
        self._options = options
        self._access = Access(options)
        self._send = send
        self._questions = Questions(send, self._figures)
        self._watchers = Watchers(options)
        self._wanted: dict[object, frozenset[str]] = {}  # tables, by watcher or who is about to be one
        self._told: frozenset[str] = frozenset()
        self.connections: Connections | None = None

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=_LONGEST_REQUEST_BYTES)
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/status", self._status),
                web.get("/events", self._events, allow_head=False),
                web.post("/components/{name}/{action:refresh|pause|resume}", self._act),
            ]
        )
        return app

    def received(self, message: Reply | Batch) -> None:
        if isinstance(message, Reply):
            self._questions.answered(message)
        else:
            self._watchers.arrived(message)

    async def beat(self) -> None:
        """Until cancelled: heartbeats to either side, readers that have left, tables that are watched no more."""
        for number in count():
            await asyncio.sleep(_BEAT_S)
            self._watchers.beat()
            if not self._tell_wanted() and number % _BEATS_TO_DAEMON == 0:
                self._send(Watch(self._told))

    def stop(self) -> None:
        self._watchers.end()

    def _figures(self) -> Figures:
        connections = self.connections
        return Figures(
            connections=0 if connections is None else len(connections),
            watchers=len(self._watchers),
            refused=0 if connections is None else connections.refused,
            missed=self._watchers.missed,
        )

    # -- looking ----------------------------------------------------------------------------------------

    async def _livez(self, _: web.Request) -> web.Response:
        """Only a daemon whose loop turns answers."""
        try:
            reply = await self._questions.ask("readiness", _ANSWER_WITHIN_S)
        except DaemonSilent:
            return _json({"role": "unknown", "alive": False}, 503)
        role = msgspec.json.decode(reply.body, type=_Ready).role if reply.status != 500 else "unknown"
        return _json({"role": role, "alive": True})

    async def _readyz(self, request: web.Request) -> web.Response:
        reply = await self._questions.ask("readiness", _ANSWER_WITHIN_S)
        if reply.status == 500 or self._access.reads(request, "status"):
            return _answer(reply)
        found = msgspec.json.decode(reply.body, type=_Ready)
        reasons = [f"reasons ({len(found.reasons)}) are shown to callers with a token"] if found.reasons else []
        return _json(_Ready(found.ready, found.role, reasons), reply.status)

    async def _metrics(self, request: web.Request) -> web.Response:
        self._access.require_read(request, "metrics")
        wanted = "openmetrics" if "application/openmetrics-text" in request.headers.get("Accept", "") else "text"
        return _answer(await self._questions.ask(wanted, _ANSWER_WITHIN_S))

    async def _status(self, request: web.Request) -> web.Response:
        self._access.require_read(request, "status")
        return _answer(await self._questions.ask("status", _ANSWER_WITHIN_S))

    # -- acting -----------------------------------------------------------------------------------------

    async def _act(self, request: web.Request) -> web.Response:
        self._access.require_write(request)
        component = request.match_info["name"].encode(errors="replace").decode()
        asked = self._questions.act(request.match_info["action"], component, request.remote)
        try:
            async with asyncio.timeout(_ACT_WITHIN_S):
                return _answer(await asked)
        except TimeoutError:
            raise DaemonSilent from None

    # -- watching events --------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self._access.require_read(request, "events")
        if request.version < (1, 1):
            raise web.HTTPBadRequest(text="events are streamed over HTTP/1.1 only")
        if len(self._wanted) >= self._options.max_watchers:
            raise web.HTTPServiceUnavailable(
                text=f"{len(self._wanted)} watch already, as many as server.max_watchers allows"
            )
        place = object()
        self._wanted[place] = frozenset()
        try:
            tables = _watched_tables(request, await self._routes())
            self._wanted[place] = tables
            if self._tell_wanted():
                await self._routes()  # asked after it was told: once this is answered, the daemon knows
            return await self._stream(request, tables)
        finally:
            del self._wanted[place]

    async def _stream(self, request: web.Request, tables: frozenset[str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        response.enable_chunked_encoding()
        transport = request.transport
        watcher: Watcher | None = None
        try:
            await response.prepare(request)
            await response.write(b"\n")  # what is committed from here on is told
            if transport is None:
                return response
            watcher = self._watchers.add(tables, transport)
            await watcher.ended.wait()
        except ConnectionError:
            return response
        finally:
            if watcher is not None:
                self._watchers.remove(watcher)
        return response

    def _tell_wanted(self) -> bool:
        wanted = frozenset[str]().union(*self._wanted.values())
        if wanted == self._told:
            return False
        self._told = wanted
        self._send(Watch(wanted))
        return True

    async def _routes(self) -> Routes:
        reply = await self._questions.ask("routes", _ANSWER_WITHIN_S)
        if reply.status != 200:
            raise web.HTTPInternalServerError(text=_OURS)
        return msgspec.json.decode(reply.body, type=Routes)

    # -- answering --------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors as JSON of one shape; an unforeseen one is logged, and not shown."""
        streams = request.path == "/events"
        if self.connections is None:
            return await self._plain_errors(request, handler)
        with self.connections.request(request.transport, streams=streams):
            return await self._plain_errors(request, handler)

    async def _plain_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._access.require_host(request)
            return await handler(request)
        except web.HTTPException as error:
            response = _json({"error": error.text}, error.status)
            for header in ("Allow", "WWW-Authenticate"):
                if header in error.headers:
                    response.headers[header] = error.headers[header]
            return response
        except DaemonSilent:
            return _json({"error": "the daemon's event loop does not answer: it is blocked, or very busy"}, 503)
        except ConnectionError:
            raise
        except Exception:
            log.exception("a request failed: %s", request.path[:200])
            return _json({"error": _OURS}, 500)


_OURS = "a fault of Astha itself; the log says where"


def _watched_tables(request: web.Request, routes: Routes) -> frozenset[str]:
    """Only tables that a component subscribes to are decoded at all, so no other can be watched."""
    if not routes.leads:
        raise web.HTTPConflict(text=f"this daemon stands by; {routes.leader or 'another one'} leads: ask that one")
    component, table = request.query.get("component"), request.query.get("table")
    tables = frozenset(table for tables in routes.components.values() for table in tables)
    if component is not None:
        if component not in routes.components:
            known = ", ".join(routes.components) or "none: no component is subscribed"
            raise web.HTTPNotFound(text=f"there is no component {component!r}; there are {known}")
        tables = frozenset(routes.components[component])
    if table is None:
        return tables
    if table not in routes.known:
        raise web.HTTPNotFound(text=f"there is no table {table!r}; there are {', '.join(routes.known)}")
    if table not in tables:
        who = f"component {component} does not subscribe" if component else "no component subscribes"
        raise web.HTTPNotFound(text=f"{who} to {table}, so its changes don't pass here")
    return frozenset([table])


def _answer(reply: Reply) -> web.Response:
    return web.Response(body=reply.body, status=reply.status, headers={"Content-Type": reply.content_type})


def _json(value: object, status: int = 200) -> web.Response:
    body = msgspec.json.encode(value) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")
