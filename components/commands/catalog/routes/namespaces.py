"""Routes of namespaces."""

from __future__ import annotations

from aiohttp import web

from components.commands.catalog.bodies import CreateNamespace, UpdateNamespace, decode
from components.commands.catalog.names import levels_of, namespace_of, new_namespace, page_size
from components.commands.catalog.namespaces import Namespaces
from components.commands.catalog.routes.responses import NAMESPACE, Route, idempotent_request, json_response, no_content
from components.commands.catalog.security.access import grants_of


class NamespaceRoutes:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/namespaces", self._list),
            Route("POST", "/v1/namespaces", self._create),
            Route("GET", NAMESPACE, self._load),
            Route("HEAD", NAMESPACE, self._exists),
            Route("DELETE", NAMESPACE, self._drop),
            Route("POST", f"{NAMESPACE}/properties", self._update),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        query = request.query
        parent = namespace_of(query["parent"]) if query.get("parent") else ""
        paged = "pageToken" in query or "pageSize" in query
        size = page_size(query.get("pageSize"))
        shown, last = await self._namespaces.list_page(
            parent, query.get("pageToken", ""), size, paged, grants_of(request).allow
        )
        return json_response({"namespaces": [levels_of(name) for name in shown], "next-page-token": last})

    async def _create(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), CreateNamespace)
        namespace, properties = new_namespace(body.namespace), body.properties or {}
        await self._namespaces.create(namespace, properties, await idempotent_request(request))
        return json_response({"namespace": levels_of(namespace), "properties": properties})

    async def _load(self, request: web.Request) -> web.Response:
        namespace = _named(request)
        properties = await self._namespaces.properties(namespace)
        return json_response({"namespace": levels_of(namespace), "properties": properties})

    async def _exists(self, request: web.Request) -> web.Response:
        await self._namespaces.require(_named(request))
        return no_content()

    async def _drop(self, request: web.Request) -> web.Response:
        await self._namespaces.drop(_named(request), await idempotent_request(request))
        return no_content()

    async def _update(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), UpdateNamespace)
        changes = await self._namespaces.update(
            _named(request), body.updates or {}, body.removals or [], await idempotent_request(request)
        )
        return json_response(changes)


def _named(request: web.Request) -> str:
    return namespace_of(request.match_info["namespace"])
