"""The listener's routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec
import structlog
from aiohttp import web

from astha.dashboard import HEADERS
from astha.listener.auth import Access
from astha.listener.connections import Connections
from astha.listener.dashboard import LIVE, Dashboard
from astha.listener.link import STANDING_BY, EventFrame, ListenerCounts, Reply, Routes, WatchedTables
from astha.listener.options import Options
from astha.listener.queries import DaemonQueries, DaemonUnresponsive
from astha.listener.watchers import Watcher, Watchers

log = structlog.get_logger(__name__)

_QUERY_TIMEOUT_S = 5.0
_ACTION_TIMEOUT_S = 8.0
_HEARTBEAT_S = 0.5
_HEARTBEATS_PER_DAEMON_FRAME = 6
_MAX_REQUEST_BYTES = 16 * 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Ready(msgspec.Struct, frozen=True):
    ready: bool
    role: str
    reasons: list[str]


class Listener:
    """Handles requests with the daemon's replies. `send` sends a frame to the daemon."""

    def __init__(self, options: Options, send: Callable[[msgspec.Struct], None]) -> None:
        self._options = options
        self._access = Access(options)
        self._send = send
        self._queries = DaemonQueries(send, self._counts)
        self._watchers = Watchers(options)
        self._dashboard = Dashboard(options, self._access, self._queries)
        self._wanted: dict[object, frozenset[str]] = {}  # tables, by present or future watcher
        self._announced: frozenset[str] = frozenset()
        self.connections: Connections | None = None

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_REQUEST_BYTES)
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/status", self._status),
                web.get("/events", self._events, allow_head=False),
                web.post("/components/{name}/{action:refresh|pause|resume}", self._act),
                *self._dashboard.routes(),
            ]
        )
        return app

    def received(self, message: Reply | EventFrame) -> None:
        if isinstance(message, Reply):
            self._queries.replied(message)
        else:
            self._watchers.received(message)

    async def beat(self) -> None:
        """Runs until cancelled: sends heartbeats to watchers and daemon, removes watchers that have left, and announces
        the tables that are still watched.
        """
        for number in count():
            await asyncio.sleep(_HEARTBEAT_S)
            self._watchers.beat()
            if not self._announce_tables() and number % _HEARTBEATS_PER_DAEMON_FRAME == 0:
                self._send(WatchedTables(self._announced))

    async def sample(self) -> None:
        """Runs until cancelled: the dashboard's history and live data."""
        await self._dashboard.live.run()

    def stop(self) -> None:
        self._watchers.end()
        self._dashboard.live.end()

    def _counts(self) -> ListenerCounts:
        connections = self.connections
        return ListenerCounts(
            connections=0 if connections is None else len(connections),
            watchers=len(self._watchers),
            refused=0 if connections is None else connections.refused,
            missed=self._watchers.missed,
            dashboards=len(self._dashboard.live),
            dropped_dashboards=self._dashboard.live.dropped,
        )

    # -- reading ----------------------------------------------------------------------------------------

    async def _livez(self, _: web.Request) -> web.Response:
        """The daemon replies only if its event loop runs."""
        try:
            reply = await self._queries.query("readiness", _QUERY_TIMEOUT_S)
        except DaemonUnresponsive:
            return _json({"role": "unknown", "alive": False}, 503)
        role = msgspec.json.decode(reply.body, type=_Ready).role if reply.status != 500 else "unknown"
        return _json({"role": role, "alive": True})

    async def _readyz(self, request: web.Request) -> web.Response:
        """With `standby=ready`, a daemon that stands by is ready: a rollout may replace the next one."""
        counts_standby = _counts_standby(request)
        reply = await self._queries.query("readiness", _QUERY_TIMEOUT_S)
        if counts_standby and reply.status == 503:
            role = msgspec.json.decode(reply.body, type=_Ready).role
            if role == STANDING_BY:
                return _json(_Ready(ready=True, role=role, reasons=[]))
        if reply.status == 500 or self._access.may_read(request, "status"):
            return _response(reply)
        found = msgspec.json.decode(reply.body, type=_Ready)
        reasons = [f"reasons ({len(found.reasons)}) are shown to callers with a token"] if found.reasons else []
        return _json(_Ready(found.ready, found.role, reasons), reply.status)

    async def _metrics(self, request: web.Request) -> web.Response:
        self._access.require_read(request, "metrics")
        wanted = "openmetrics" if "application/openmetrics-text" in request.headers.get("Accept", "") else "text"
        return _response(await self._queries.query(wanted, _QUERY_TIMEOUT_S))

    async def _status(self, request: web.Request) -> web.Response:
        self._access.require_read(request, "status")
        return _response(await self._queries.query("status", _QUERY_TIMEOUT_S))

    # -- actions -----------------------------------------------------------------------------------------

    async def _act(self, request: web.Request) -> web.Response:
        self._access.require_write(request)
        component = request.match_info["name"].encode(errors="replace").decode()
        client = request.headers.get("User-Agent", "")[:120]
        reply = self._queries.act(request.match_info["action"], component, request.remote, client=client)
        try:
            async with asyncio.timeout(_ACTION_TIMEOUT_S):
                return _response(await reply)
        except TimeoutError:
            raise DaemonUnresponsive from None

    # -- events --------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self._access.require_read(request, "events")
        if request.version < (1, 1):
            raise web.HTTPBadRequest(text="events are streamed over HTTP/1.1 only")
        if len(self._wanted) >= self._options.max_watchers:
            raise web.HTTPServiceUnavailable(
                text=f"there are already {len(self._wanted)} watchers, as many as server.max_watchers allows"
            )
        key = object()
        self._wanted[key] = frozenset()
        try:
            tables = _watched_tables(request, await self._routes())
            self._wanted[key] = tables
            if self._announce_tables():
                await self._routes()  # a reply to this shows that the daemon has received the announcement
            return await self._stream(request, tables)
        finally:
            del self._wanted[key]

    async def _stream(self, request: web.Request, tables: frozenset[str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        response.enable_chunked_encoding()
        transport = request.transport
        watcher: Watcher | None = None
        try:
            await response.prepare(request)
            await response.write(b"\n")  # transactions committed from now on are streamed
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

    def _announce_tables(self) -> bool:
        wanted = frozenset[str]().union(*self._wanted.values())
        if wanted == self._announced:
            return False
        self._announced = wanted
        self._send(WatchedTables(wanted))
        return True

    async def _routes(self) -> Routes:
        reply = await self._queries.query("routes", _QUERY_TIMEOUT_S)
        if reply.status != 200:
            raise web.HTTPInternalServerError(text=_INTERNAL_ERROR)
        return msgspec.json.decode(reply.body, type=Routes)

    # -- errors --------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Returns errors as JSON of one shape. An unexpected error is logged, and not shown to the client."""
        streams = request.path in ("/events", LIVE)
        if self.connections is None:
            return await self._with_json_errors(request, handler)
        with self.connections.request(request.transport, streams=streams):
            return await self._with_json_errors(request, handler)

    async def _with_json_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await self._respond(request, handler)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._access.require_host(request)
            return await handler(request)
        except web.HTTPException as error:
            response = _json({"error": error.text}, error.status)
            for header in ("Allow", "WWW-Authenticate"):
                if header in error.headers:
                    response.headers[header] = error.headers[header]
            return response
        except DaemonUnresponsive:
            return _json({"error": "the daemon's event loop does not respond: it is blocked or overloaded"}, 503)
        except ConnectionError:
            raise
        except Exception:
            log.exception("request failed", path=request.path[:200])
            return _json({"error": _INTERNAL_ERROR}, 500)


_INTERNAL_ERROR = "internal error: see the daemon's log"


def _counts_standby(request: web.Request) -> bool:
    wanted = request.query.get("standby")
    if wanted not in (None, "ready"):
        raise web.HTTPBadRequest(text="standby can only be ready: /readyz?standby=ready")
    return wanted is not None


def _watched_tables(request: web.Request, routes: Routes) -> frozenset[str]:
    """Returns the tables to watch. Only subscribed tables are decoded, so no others can be watched."""
    if routes.idle is not None:
        raise web.HTTPConflict(text=routes.idle)
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
        raise web.HTTPNotFound(text=f"{who} to {table}, so it has no events")
    return frozenset([table])


def _response(reply: Reply) -> web.Response:
    return web.Response(body=reply.body, status=reply.status, headers={"Content-Type": reply.content_type})


def _json(value: object, status: int = 200) -> web.Response:
    body = msgspec.json.encode(value) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")
