"""Routes, and the life of the server."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from astha.clock import LoopClock
from astha.concealment import Concealment
from astha.daemon import Daemon
from astha.errors import AddressTaken, ConfigError
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from astha.server.access import Access
from astha.server.health import Alive, readiness, role
from astha.server.status import Self, component_report, report
from astha.server.tap import Tap, Watcher, encode
from astha.settings import ServerSettings
from astha.telemetry import DaemonCollector
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.schema import PUBLISHED_TABLES

log = structlog.get_logger(__name__)

_HEARTBEAT_S = 10.0
"""An empty line for who watches events, so that either side notices when the other is gone."""

_WRITE_AT_ONCE_BYTES = 64 * 1024
_LEADER_TIMEOUT_S = 2.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves one daemon from `start` to `stop`."""

    def __init__(
        self,
        daemon: Daemon,
        store: MetadataStore,
        lease_name: str,
        settings: ServerSettings,
        me: Self,
        conceal: Concealment,
        clock: LoopClock,
    ) -> None:
        self._daemon = daemon
        self._store = store
        self._lease_name = lease_name
        self._settings = settings
        self._access = Access.of(settings)
        self._me = me
        self._conceal = conceal
        self._clock = clock
        self._tap = Tap()
        self._metrics = CollectorRegistry()
        self._metrics.register(DaemonCollector(daemon, clock))
        ProcessCollector(registry=self._metrics)
        self._runner: web.AppRunner | None = None
        self._watching: set[asyncio.Task[object]] = set()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._plain_errors], client_max_size=16 * 1024)
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._serve_metrics),
                web.get("/status", self._status),
                web.get("/events", self._events),
                web.post("/components/{name}/{action:refresh|pause|resume}", self._act),
            ]
        )
        self._daemon.taps.append(self._tap)
        return app

    async def start(self) -> str:
        """The URL that it listens on."""
        settings = self._settings
        self._runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, settings.host, settings.port).start()
        except OSError as error:
            await self.stop()
            where = f"{settings.host}:{settings.port}"
            if error.errno == errno.EADDRINUSE:
                raise AddressTaken(f"somebody listens on {where} already: stop them or set server.port") from error
            raise ConfigError(
                f"can't listen on {where}: {error.strerror}: correct server.host or server.port"
            ) from error
        host, port, *_ = self._runner.addresses[0]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        log.info("listening", url=url)
        return url

    async def stop(self) -> None:
        for task in self._watching:
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._tap in self._daemon.taps:
            self._daemon.taps.remove(self._tap)

    # -- looking ----------------------------------------------------------------------------------------

    async def _livez(self, _: web.Request) -> web.Response:
        return self._json(Alive(role(self._daemon)))

    async def _readyz(self, _: web.Request) -> web.Response:
        found = readiness(self._daemon, self._settings.stall_after_s)
        return self._json(found, status=200 if found.ready else 503)

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._metrics), headers={"Content-Type": content_type})

    async def _status(self, _: web.Request) -> web.Response:
        return self._json(report(self._daemon, self._clock, self._me, await self._leader()))

    async def _leader(self) -> str | None:
        """Who leads, if it is not us and the registry says so in time."""
        if self._daemon.leadership.leads:
            return None
        try:
            async with asyncio.timeout(_LEADER_TIMEOUT_S):
                lease = await self._store.get_daemon_lease(self._lease_name)
        except (RegistryError, TimeoutError):
            return None
        return lease.holder if lease is not None and lease.expires_at > self._clock.now_ms() else None

    # -- watching events --------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self._access.require_if_set(request)
        await self._require_leading()
        watcher = Watcher(self._watched_tables(request), self._settings.tail_buffer_events)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (a handler runs in one)
        self._watching.add(task)
        self._tap.watchers.add(watcher)
        try:
            await response.prepare(request)
            await response.write(b"\n")  # whatever is committed from here on is told
            while True:
                await watcher.wait(_HEARTBEAT_S)
                await self._write_taken(watcher, response)
        except ConnectionError:
            return response
        finally:
            self._tap.watchers.discard(watcher)
            self._watching.discard(task)

    async def _write_taken(self, watcher: Watcher, response: web.StreamResponse) -> None:
        waiting = bytearray()
        for item in watcher.take():
            waiting += encode(item)
            if len(waiting) >= _WRITE_AT_ONCE_BYTES:
                await response.write(bytes(waiting))
                waiting.clear()
        await response.write(bytes(waiting) or b"\n")

    def _watched_tables(self, request: web.Request) -> frozenset[str]:
        """Only what somebody subscribes to is decoded at all, so nothing else can be watched."""
        tables = self._daemon.router.tables
        component, table = request.query.get("component"), request.query.get("table")
        if component is not None:
            tables = self._lane(component).tables
        if table is None:
            return tables
        if table not in PUBLISHED_TABLES:
            raise web.HTTPNotFound(text=f"there is no table {table!r}; there are {', '.join(PUBLISHED_TABLES)}")
        if table not in tables:
            who = f"component {component} does not subscribe" if component else "nobody subscribes"
            raise web.HTTPNotFound(text=f"{who} to {table}, so its changes don't pass here")
        return frozenset([table])

    # -- acting -----------------------------------------------------------------------------------------

    async def _act(self, request: web.Request) -> web.Response:
        self._access.require(request)
        lane = self._lane(request.match_info["name"])
        action = request.match_info["action"]
        await self._require_leading()
        if action == "refresh" and lane.state is LaneState.PAUSED:
            raise web.HTTPConflict(text=f"component {lane.name} is paused: resume it, which refreshes it too")
        log.info("asked by an operator", action=action, component=lane.name, peer=request.remote)
        match action:
            case "refresh":
                lane.refresh("asked for by an operator")
            case "pause":
                lane.pause()
            case _:
                lane.resume()
        return self._json(component_report(self._daemon, lane, self._clock), status=202)

    async def _require_leading(self) -> None:
        if not self._daemon.leadership.leads:
            leader = await self._leader()
            raise web.HTTPConflict(text=f"this daemon stands by; {leader or 'another one'} leads: ask that one")

    def _lane(self, name: str) -> Lane:
        lane = self._daemon.by_name.get(name)
        if lane is None:
            known = ", ".join(self._daemon.by_name) or "none: nobody subscribes"
            raise web.HTTPNotFound(text=f"there is no component {name!r}; there are {known}")
        return lane

    # -- answering --------------------------------------------------------------------------------------

    def _json(self, value: object, status: int = 200) -> web.Response:
        text = self._conceal(msgspec.json.encode(value).decode())
        return web.Response(text=text + "\n", status=status, content_type="application/json")

    @web.middleware
    async def _plain_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors as JSON of one shape; an unforeseen one is logged, and not shown."""
        try:
            return await handler(request)
        except web.HTTPException as error:
            response = self._json({"error": error.text}, status=error.status)
            for header in ("Allow", "WWW-Authenticate"):
                if header in error.headers:
                    response.headers[header] = error.headers[header]
            return response
        except ConnectionError:
            raise
        except Exception:
            log.exception("a request failed", path=request.path)
            return self._json({"error": "a fault of Astha itself; the log says where"}, status=500)
