"""Replies to the listener's queries. Every reply is redacted and encoded here."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import structlog
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from astha.clock import LoopClock
from astha.daemon import Daemon
from astha.listener.link import Query, Reply, Routes
from astha.redaction import Redactor
from astha.server.actions import COMPONENT_ACTIONS, OPERATION_VIEWS, TABLE_ACTIONS, Actions, Refusal
from astha.server.health import readiness
from astha.server.metrics import ListenerCollector
from astha.server.status import DaemonIdentity, report
from astha.server.views import Views
from astha.subscribers.operations import OperationRefused
from astha.telemetry import DaemonCollector
from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, RegistryError
from registry.schema import PUBLISHED_TABLES

log = structlog.get_logger(__name__)

_ACCEPT = {"text": "", "openmetrics": "application/openmetrics-text"}
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (NotFound, 404),
    (Invalid, 400),
    (AlreadyExists, 409),
    (Conflict, 409),
    (OperationRefused, 409),
    (RegistryError, 503),
)
"""The first that an error is decides about HTTP's status."""


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
        self._actions = Actions(daemon, store, group, clock)
        self._views = Views(store, clock)
        self._identity = identity
        self._redact = redact
        self._clock = clock
        self.listener = ListenerCollector()
        self._metrics = CollectorRegistry()
        self._metrics.register(DaemonCollector(daemon, clock, identity.source))
        self._metrics.register(self.listener)
        ProcessCollector(registry=self._metrics)

    async def close(self) -> None:
        await self._actions.close()

    async def respond(self, query: Query) -> Reply:
        """Never raises. An unexpected error is logged, and not shown to the client."""
        self.listener.counts = query.counts
        try:
            return await self._reply(query)
        except Refusal as refusal:
            error = {"error": str(refusal)}
            return self._json(query, lambda: error, refusal.status)
        except Exception as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), None)
            if status is not None:
                known = {"error": str(error)}
                return self._json(query, lambda: known, status)
            log.exception("query failed", kind=query.kind)
            return self._json(query, lambda: {"error": "internal error: see the daemon's log"}, 500)

    async def _reply(self, query: Query) -> Reply:
        match query.kind:
            case "readiness":
                ready = readiness(self._daemon, self._identity.stall_after_s)
                return self._json(query, lambda: ready, 200 if ready.ready else 503)
            case "status":
                leader = await self._actions.leader()
                return self._json(query, lambda: report(self._daemon, self._clock, self._identity, leader))
            case "routes":
                idle = await self._actions.idle()
                return self._json(query, lambda: self._routes(idle))
            case "text" | "openmetrics":
                return self._metrics_text(query)
            case action if action in COMPONENT_ACTIONS:
                return self._json(query, await self._actions.on_component(query), 202)
            case action if action in TABLE_ACTIONS:
                done = await self._actions.on_table(query)
                return self._json(query, lambda: done, 202)
            case view if view in OPERATION_VIEWS:
                found = await self._actions.operate(query)
                return self._json(query, lambda: found)
            case view if view in self._views:
                found = await self._views.read(view, query.arguments)
                return self._json(query, lambda: found)
        raise Refusal(404, f"there is no query {query.kind!r}")

    def _metrics_text(self, query: Query) -> Reply:
        started = time.perf_counter()
        encoder, content_type = choose_encoder(_ACCEPT[query.kind])
        body = encoder(self._metrics)
        return Reply(query.number, 200, body, content_type, time.perf_counter() - started)

    def _routes(self, idle: str | None) -> Routes:
        components = {lane.name: sorted(lane.tables) for lane in self._daemon.lanes}
        return Routes(idle, components, list(PUBLISHED_TABLES))

    def _json(self, query: Query, value: Callable[[], object], status: int = 200) -> Reply:
        started = time.perf_counter()
        shown = self._redact.values(msgspec.to_builtins(value(), str_keys=True))
        body = msgspec.json.encode(shown) + b"\n"
        return Reply(query.number, status, body, took_s=time.perf_counter() - started)
