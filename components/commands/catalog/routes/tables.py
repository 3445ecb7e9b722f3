"""Routes of tables that make no commit: listing, loading, renaming, dropping."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

from components.commands.catalog.bodies import RenameTable, decode
from components.commands.catalog.errors import BadRequest
from components.commands.catalog.names import TableIdentity, identity_of, levels_of, namespace_of, page_size
from components.commands.catalog.routes.responses import (
    NAMESPACE,
    TABLE,
    Route,
    idempotent_request,
    json_response,
    no_content,
)
from components.commands.catalog.tables import LoadedTable, Tables, etag


class TableResponses:
    """`config` is what a client gets with each table, such as credentials of the storage."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = msgspec.json.encode(dict(config))

    def loaded(self, table: LoadedTable, tag: str | None = None) -> web.Response:
        body = b'{"metadata-location":%b,"metadata":%b,"config":%b}' % (
            msgspec.json.encode(table.location),
            table.metadata,
            self._config,
        )
        headers = {} if table.location is None else {"ETag": tag or table.etag}
        return web.Response(body=body, content_type="application/json", headers=headers)


class TableRoutes:
    def __init__(self, tables: Tables, responses: TableResponses) -> None:
        self._tables = tables
        self._responses = responses

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{NAMESPACE}/tables", self._list),
            Route("GET", TABLE, self._load),
            Route("HEAD", TABLE, self._exists),
            Route("DELETE", TABLE, self._drop),
            Route("POST", "/v1/tables/rename", self._rename),
            Route("POST", f"{TABLE}/metrics", self._report_metrics),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        namespace, query = namespace_of(request.match_info["namespace"]), request.query
        paged = "pageToken" in query or "pageSize" in query
        size = page_size(query.get("pageSize"))
        shown, last = await self._tables.list_page(namespace, query.get("pageToken", ""), size, paged)
        names = [{"namespace": levels_of(namespace), "name": name} for name in shown]
        return json_response({"identifiers": names, "next-page-token": last})

    async def _load(self, request: web.Request) -> web.Response:
        which = request.query.get("snapshots", "all")
        if which not in ("all", "refs"):
            raise BadRequest(f"snapshots must be `all` or `refs`, not {which[:20]!r}")
        location = await self._tables.location(table_of(request))
        tag = etag(location, which)
        if tag in (given.strip() for given in request.headers.get("If-None-Match", "").split(",")):
            return web.Response(status=304, headers={"ETag": tag})
        return self._responses.loaded(LoadedTable(location, await self._tables.metadata(location, which)), tag)

    async def _exists(self, request: web.Request) -> web.Response:
        await self._tables.location(table_of(request))
        return no_content()

    async def _drop(self, request: web.Request) -> web.Response:
        await self._tables.drop(
            table_of(request), await idempotent_request(request), purge=_flag(request, "purgeRequested")
        )
        return no_content()

    async def _rename(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), RenameTable)
        source, destination = identity_of(body.source), identity_of(body.destination)
        await self._tables.rename(source, TableIdentity.new(*destination), await idempotent_request(request))
        return no_content()

    async def _report_metrics(self, request: web.Request) -> web.Response:
        """Accepts a client's report of a scan or commit, and keeps nothing of it."""
        await request.read()
        return no_content()


def table_of(request: web.Request) -> TableIdentity:
    return TableIdentity.existing(namespace_of(request.match_info["namespace"]), request.match_info["table"])


def _flag(request: web.Request, name: str) -> bool:
    given = request.query.get(name, "false").lower()
    if given not in ("true", "false"):
        raise BadRequest(f"{name} must be true or false, not {given[:20]!r}")
    return given == "true"
