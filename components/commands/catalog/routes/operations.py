"""Routes for clients' configuration and for the operator: health and metrics."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from aiohttp import web

from components.commands.catalog.idempotency import LIFETIME
from components.commands.catalog.metrics import CatalogMetrics
from components.commands.catalog.routes.responses import Route, json_response
from registry.contract import MetadataStore
from registry.errors import RegistryError

log = structlog.get_logger(__name__)


class OperationRoutes:
    """`served` are the routes that `config` lists."""

    def __init__(self, store: MetadataStore, metrics: CatalogMetrics, served: Sequence[Route]) -> None:
        self._store = store
        self._metrics = metrics
        self._endpoints = [route.endpoint for route in served]

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/config", self._config),
            Route("GET", "/livez", self._livez),
            Route("GET", "/readyz", self._readyz),
            Route("GET", "/metrics", self._metrics_page),
        ]

    async def _config(self, _: web.Request) -> web.Response:
        return json_response(
            {"defaults": {}, "overrides": {}, "endpoints": self._endpoints, "idempotency-key-lifetime": LIFETIME}
        )

    async def _livez(self, _: web.Request) -> web.Response:
        return json_response({"alive": True})

    async def _readyz(self, _: web.Request) -> web.Response:
        """Ready if the registry answers."""
        try:
            await self._store.time()
        except RegistryError as error:
            log.warning("not ready", error=str(error))
            return json_response(
                {"ready": False, "reasons": ["the registry can't be read: see the catalog's log"]}, 503
            )
        return json_response({"ready": True, "reasons": []})

    async def _metrics_page(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": CatalogMetrics.CONTENT_TYPE})
