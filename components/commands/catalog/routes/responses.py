"""What the routes share: responses, and the record of a request with an idempotency key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

import msgspec
from aiohttp import web

from components.commands.catalog.errors import CatalogError, error_body
from components.commands.catalog.idempotency import request_of
from registry.models import CatalogRequest

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

NAMESPACE = "/v1/namespaces/{namespace}"
TABLE = "/v1/namespaces/{namespace}/tables/{table}"


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler

    @property
    def endpoint(self) -> str:
        """Its name in `config.endpoints`."""
        return f"{self.method} {self.path.replace('/v1/', '/v1/{prefix}/')}"


async def idempotent_request(request: web.Request) -> CatalogRequest | None:
    """Returns the record of a request with an idempotency key, else None."""
    key = request.headers.get("Idempotency-Key")
    return request_of(key, request.method, request.path_qs, await request.read())


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def no_content() -> web.Response:
    return web.Response(status=204)


def error_response(error: CatalogError) -> web.Response:
    headers = {"WWW-Authenticate": 'Bearer realm="astha"'} if error.status == 401 else None
    body = error_body(error.status, error.type, str(error))
    return web.Response(body=body, status=error.status, content_type="application/json", headers=headers)
