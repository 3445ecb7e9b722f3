"""The application: routes, access and errors in one place."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import structlog
from aiohttp import web

from astha.listener.connections import Connections
from components.commands.catalog.body_limit import LARGEST, BodyLimit
from components.commands.catalog.error_mapping import catalog_error
from components.commands.catalog.errors import (
    BadRequest,
    CatalogError,
    Forbidden,
    NoSuchEndpoint,
    NotAuthorized,
    Unsupported,
)
from components.commands.catalog.metrics import CatalogMetrics
from components.commands.catalog.routes.commits import CommitRoutes
from components.commands.catalog.routes.namespaces import NamespaceRoutes
from components.commands.catalog.routes.operations import OperationRoutes
from components.commands.catalog.routes.responses import Handler, Route, error_response
from components.commands.catalog.routes.tables import TableResponses, TableRoutes
from components.commands.catalog.security.access import LOGIN, CatalogAccess
from components.commands.catalog.service import CatalogService

log = structlog.get_logger(__name__)


class Catalog:
    """Handles requests. `config` is what a client gets with each table, such as credentials of the storage."""

    def __init__(
        self, service: CatalogService, access: CatalogAccess, bodies: BodyLimit, config: Mapping[str, str]
    ) -> None:
        self._access = access
        self._bodies = bodies
        self.metrics = CatalogMetrics()
        self.connections: Connections | None = None
        responses = TableResponses(config)
        served = [
            *NamespaceRoutes(service.namespaces).routes(),
            *TableRoutes(service.tables, responses).routes(),
            *CommitRoutes(service.changes, responses).routes(),
        ]
        self._routes: list[Route] = [*served, *OperationRoutes(service.store, self.metrics, served).routes()]

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=LARGEST)
        for route in self._routes:
            self._access.require_declared(route.method, route.path)
            app.router.add_route(route.method, route.path, route.handler)
        if self._access.login is not None:
            app.router.add_route("POST", LOGIN, self._access.login.handle)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began = perf_counter()
        if self.connections is None:
            response = await self._with_protocol_errors(request, handler)
        else:
            with self.connections.request(request.transport, streams=False):
                response = await self._with_protocol_errors(request, handler)
        resource = request.match_info.route.resource
        self.metrics.count(
            request.method, resource.canonical if resource else "", response.status, perf_counter() - began
        )
        return response

    async def _with_protocol_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._access.identify(request)
            async with self._bodies.hold(request):
                await self._access.authorize(request)  # it may read the body
                return await handler(request)
        except web.HTTPException as error:
            return error_response(_translated(error, request))
        except ConnectionError:
            raise
        except Exception as error:
            known = catalog_error(error)
            if known is None:
                log.exception("request failed", path=request.path[:200])
                known = CatalogError("internal error: see the catalog's log")
            elif known.status >= 500:
                log.warning("request failed", path=request.path[:200], error=str(error))
            return error_response(known)


def _translated(error: web.HTTPException, request: web.Request) -> CatalogError:
    text = error.text or error.reason
    match error.status:
        case 401:
            return NotAuthorized(text)
        case 403:
            return Forbidden(text)
        case 404 if not request.path.startswith("/v1/"):
            return NoSuchEndpoint(f"there is no path {request.path[:200]}: the catalog is below /v1")
        case 404 | 405:
            return Unsupported(
                f"this catalog does not serve {request.method} {request.path[:200]}: GET /v1/config lists what it does"
            )
        case _:
            return BadRequest(text)
