"""The dashboard's routes: its files, pages of the registry, live data, and actions on tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from aiohttp import web

from astha.dashboard import HEADERS, read_assets
from astha.listener.auth import Access
from astha.listener.link import Reply
from astha.listener.live import Live, LiveStream
from astha.listener.options import Options
from astha.listener.queries import DaemonQueries, DaemonUnresponsive

LIVE = "/api/live"

_VIEW_TIMEOUT_S = 20.0
_OPERATION_TIMEOUT_S = 50.0
_MAX_TEXT = 500
_VIEWS = ("tables", "compactions", "topics", "daemons", "progress")


class Dashboard:
    """All its data needs the right to read: each page shows names. Its files need none."""

    def __init__(self, options: Options, access: Access, queries: DaemonQueries) -> None:
        self._max_streams = options.max_dashboards
        self._access = access
        self._queries = queries
        self._assets = read_assets()
        self.live = Live(queries)

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        return [
            web.get("/", self._redirect),
            web.get("/dashboard", self._redirect),
            web.get("/dashboard/{file:[a-z0-9_.-]*}", self._asset),
            web.get("/api/access", self._show_access),
            web.get(LIVE, self._stream, allow_head=False),
            web.get("/api/history", self._history),
            *(web.get(f"/api/{view}", self._viewer(view)) for view in _VIEWS),
            web.get("/api/tables/{name}", self._viewer("table")),
            web.get("/api/tables/{name}/explain", self._viewer("explain")),
            web.get("/api/topics/{name}", self._viewer("topic")),
            web.post("/tables/{name}/{action:snapshot|rollback|compact|cancel}", self._act),
        ]

    # -- files ----------------------------------------------------------------------------------------------

    async def _redirect(self, _: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/dashboard/"})

    async def _asset(self, request: web.Request) -> web.Response:
        asset = self._assets.get(request.match_info["file"] or "index.html")
        if asset is None:
            raise web.HTTPNotFound(text="the dashboard has no such file")
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache", "Content-Type": asset.content_type}
        if request.headers.get("If-None-Match") == asset.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=asset.body, headers=headers)

    # -- data -----------------------------------------------------------------------------------------------

    async def _show_access(self, request: web.Request) -> web.Response:
        """What the caller may do, so that a page can ask for a token before an action fails."""
        return _json(
            {"read": self._access.may_read(request, "dashboard"), "write": self._access.may_write(request)}
            | {"changes": self._access.accepts_changes}
        )

    async def _history(self, request: web.Request) -> web.Response:
        self._access.require_read(request, "dashboard")
        return _json({"samples": list(self.live.history.samples)})

    def _viewer(self, view: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def show(request: web.Request) -> web.Response:
            self._access.require_read(request, "dashboard")
            arguments = _arguments(request)
            name = _name(request)
            if name is not None:
                arguments["name"] = name
            table = name if view == "explain" else None
            try:
                return _response(await self._queries.view(view, arguments, _VIEW_TIMEOUT_S, table=table))
            except DaemonUnresponsive:
                why = "the registry does not respond, or the daemon is overloaded"
                raise web.HTTPServiceUnavailable(text=f"no response within {_VIEW_TIMEOUT_S:g} s: {why}") from None

        return show

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self._access.require_read(request, "dashboard")
        if request.version < (1, 1):
            raise web.HTTPBadRequest(text="live data is streamed over HTTP/1.1 only")
        if len(self.live) >= self._max_streams:
            raise web.HTTPServiceUnavailable(
                text=f"there are already {len(self.live)} dashboards, as many as server.max_dashboards allows"
            )
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", **HEADERS}
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        transport = request.transport
        stream: LiveStream | None = None
        try:
            await response.prepare(request)
            if transport is None:
                return response
            stream = self.live.add(transport)
            await stream.ended.wait()
        except ConnectionError:
            return response
        finally:
            if stream is not None:
                self.live.remove(stream)
        return response

    # -- actions --------------------------------------------------------------------------------------------

    async def _act(self, request: web.Request) -> web.Response:
        self._access.require_write(request)
        reply = self._queries.act(
            request.match_info["action"],
            None,
            request.remote,
            table=_name(request),
            arguments=_arguments(request),
            client=request.headers.get("User-Agent", "")[:120],
        )
        try:
            async with asyncio.timeout(_OPERATION_TIMEOUT_S):
                return _response(await reply)
        except TimeoutError:
            raise DaemonUnresponsive from None


def _name(request: web.Request) -> str | None:
    found = request.match_info.get("name")
    return None if found is None else found.encode(errors="replace").decode()[:_MAX_TEXT]


def _arguments(request: web.Request) -> dict[str, str]:
    return {
        name[:_MAX_TEXT]: value.encode(errors="replace").decode()[:_MAX_TEXT] for name, value in request.query.items()
    }


def _response(reply: Reply) -> web.Response:
    return web.Response(body=reply.body, status=reply.status, headers={"Content-Type": reply.content_type})


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", content_type="application/json")
