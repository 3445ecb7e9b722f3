"""Replies to the listener's queries. Every reply is redacted and encoded here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from astha.clock import LoopClock
from astha.daemon import Daemon
from astha.lanes.state import LaneState
from astha.listener.link import Query, Reply, Routes
from astha.redaction import Redactor
from astha.server.health import readiness
from astha.server.metrics import ListenerCollector
from astha.server.status import DaemonIdentity, component_report, report
from astha.telemetry import DaemonCollector
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.schema import PUBLISHED_TABLES

log = structlog.get_logger(__name__)

_LEADER_TIMEOUT_S = 2.0
_ACCEPT = {"text": "", "openmetrics": "application/openmetrics-text"}
_ACTIONS = ("refresh", "pause", "resume")


class Refusal(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Responder:
    """`took_s` of a reply is the time that the event loop spent on it, without waiting."""

    def __init__(
        self,
        daemon: Daemon,
        store: MetadataStore,
        group: str,
        identity: DaemonIdentity,
        redact: Redactor,
        clock: LoopClock,
    ) -> None:
        self._daemon = daemon
        self._store = store
        self._group = group
        self._identity = identity
        self._redact = redact
        self._clock = clock
        self.listener = ListenerCollector()
        self._metrics = CollectorRegistry()
        self._metrics.register(DaemonCollector(daemon, clock, identity.source))
        self._metrics.register(self.listener)
        ProcessCollector(registry=self._metrics)

    async def respond(self, query: Query) -> Reply:
        """Never raises. An unexpected error is logged, and not shown to the client."""
        self.listener.counts = query.counts
        try:
            return await self._reply(query)
        except Refusal as refusal:
            error = {"error": str(refusal)}
            return self._json(query, lambda: error, refusal.status)
        except Exception:
            log.exception("query failed", kind=query.kind)
            return self._json(query, lambda: {"error": "internal error: see the daemon's log"}, 500)

    async def _reply(self, query: Query) -> Reply:
        match query.kind:
            case "readiness":
                found = readiness(self._daemon, self._identity.stall_after_s)
                return self._json(query, lambda: found, 200 if found.ready else 503)
            case "status":
                leader = await self._leader()
                return self._json(query, lambda: report(self._daemon, self._clock, self._identity, leader))
            case "routes":
                leader = await self._leader()
                return self._json(query, lambda: self._routes(leader))
            case "text" | "openmetrics":
                return self._metrics_text(query)
            case action if action in _ACTIONS:
                return await self._act(query)
        raise Refusal(404, f"there is no query {query.kind!r}")

    def _metrics_text(self, query: Query) -> Reply:
        started = time.perf_counter()
        encoder, content_type = choose_encoder(_ACCEPT[query.kind])
        body = encoder(self._metrics)
        return Reply(query.number, 200, body, content_type, time.perf_counter() - started)

    def _routes(self, leader: str | None) -> Routes:
        components = {lane.name: sorted(lane.tables) for lane in self._daemon.lanes}
        return Routes(self._daemon.leadership.leads, leader, components, list(PUBLISHED_TABLES))

    async def _leader(self) -> str | None:
        """Returns the leader, if it is another daemon and the registry responds in time."""
        if self._daemon.leadership.leads:
            return None
        try:
            async with asyncio.timeout(_LEADER_TIMEOUT_S):
                lease = await self._store.get_daemon_lease(self._group)
        except (RegistryError, TimeoutError):
            return None
        return lease.holder if lease is not None and lease.expires_at > self._clock.now_ms() else None

    async def _act(self, query: Query) -> Reply:
        lane = self._daemon.by_name.get(query.component or "")
        if lane is None:
            known = ", ".join(self._daemon.by_name) or "none: no component is subscribed"
            raise Refusal(404, f"there is no component {query.component!r}; there are {known}")
        if not self._daemon.leadership.leads:
            leader = await self._leader()
            raise Refusal(409, f"this daemon stands by; {leader or 'another one'} leads: ask that one")
        if query.kind == "refresh" and lane.state is LaneState.PAUSED:
            raise Refusal(409, f"component {lane.name} is paused: resume it, which refreshes it too")
        log.info("operator action", action=query.kind, component=lane.name, peer=query.peer)
        match query.kind:
            case "refresh":
                lane.refresh("requested by an operator")
            case "pause":
                lane.pause()
            case _:
                lane.resume()
        return self._json(query, lambda: component_report(self._daemon, lane, self._clock), 202)

    def _json(self, query: Query, value: Callable[[], object], status: int = 200) -> Reply:
        started = time.perf_counter()
        shown = self._redact.values(msgspec.to_builtins(value(), str_keys=True))
        body = msgspec.json.encode(shown) + b"\n"
        return Reply(query.number, status, body, took_s=time.perf_counter() - started)
