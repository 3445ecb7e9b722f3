"""Who may do what: every route declares here the namespaces that it reads or writes.

`authorize` runs before each handler, and refuses a route that declares nothing.
"""

from __future__ import annotations

import hmac
import secrets as randomness
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Self, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from astha.listener.auth import Access
from astha.listener.options import Options
from astha.settings.catalog import CatalogSettings
from components.commands.catalog.bodies import decode
from components.commands.catalog.errors import Forbidden, NotAuthorized
from components.commands.catalog.names import SEPARATOR, namespace_of
from components.commands.catalog.security.grants import ANONYMOUS, READ_TOKEN, TOKEN, Grants
from components.commands.catalog.security.login import Login
from components.commands.catalog.security.login_limit import LoginLimit
from components.commands.catalog.security.tokens import TokenRefused, Tokens

T = TypeVar("T")

_GRANTS = web.RequestKey("grants", Grants)
_KEY_BYTES = 32


class Need(NamedTuple):
    namespace: str
    write: bool


Needs: TypeAlias = Callable[[web.Request], Awaitable[Iterable[Need]]]


class _Named(msgspec.Struct):
    namespace: list[str]


class _Renamed(msgspec.Struct):
    source: _Named
    destination: _Named


class _Change(msgspec.Struct):
    identifier: _Named


class _Transaction(msgspec.Struct, rename="kebab"):
    table_changes: list[_Change]


async def _read(request: web.Request) -> list[Need]:
    return [Need(namespace_of(request.match_info["namespace"]), False)]


async def _write(request: web.Request) -> list[Need]:
    return [Need(namespace_of(request.match_info["namespace"]), True)]


async def _nothing(_: web.Request) -> list[Need]:
    """A known caller is enough; a list contains what the caller may read."""
    return []


async def _create_namespace(request: web.Request) -> list[Need]:
    return [_written(await _body(request, _Named))]


async def _rename(request: web.Request) -> list[Need]:
    body = await _body(request, _Renamed)
    return [_written(body.source), _written(body.destination)]


async def _commit_transaction(request: web.Request) -> list[Need]:
    body = await _body(request, _Transaction)
    return [_written(change.identifier) for change in body.table_changes]


def _written(named: _Named) -> Need:
    return Need(namespace_of(SEPARATOR.join(named.namespace)), True)


async def _body(request: web.Request, kind: type[T]) -> T:
    """Of a key that is given twice the last value counts, as in the handlers' decoders."""
    return decode(await request.read(), kind)


LOGIN = "/v1/oauth/tokens"
OPEN = {("GET", "/livez"), ("GET", "/readyz"), ("POST", LOGIN)}
"""Routes for callers that are not known yet."""

_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = "/v1/namespaces/{namespace}/tables/{table}"
_VIEW = "/v1/namespaces/{namespace}/views/{view}"
ROUTES: Mapping[tuple[str, str], Needs] = {
    ("GET", "/metrics"): _nothing,
    ("GET", "/v1/config"): _nothing,
    ("GET", "/v1/namespaces"): _nothing,
    ("POST", "/v1/namespaces"): _create_namespace,
    ("GET", _NAMESPACE): _read,
    ("HEAD", _NAMESPACE): _read,
    ("DELETE", _NAMESPACE): _write,
    ("POST", f"{_NAMESPACE}/properties"): _write,
    ("GET", f"{_NAMESPACE}/tables"): _read,
    ("POST", f"{_NAMESPACE}/tables"): _write,
    ("POST", f"{_NAMESPACE}/register"): _write,
    ("GET", _TABLE): _read,
    ("HEAD", _TABLE): _read,
    ("POST", _TABLE): _write,
    ("DELETE", _TABLE): _write,
    ("POST", f"{_TABLE}/metrics"): _read,
    ("GET", f"{_TABLE}/credentials"): _read,
    ("POST", "/v1/tables/rename"): _rename,
    ("POST", "/v1/transactions/commit"): _commit_transaction,
    ("GET", f"{_NAMESPACE}/views"): _read,
    ("POST", f"{_NAMESPACE}/views"): _write,
    ("GET", _VIEW): _read,
    ("HEAD", _VIEW): _read,
    ("POST", _VIEW): _write,
    ("DELETE", _VIEW): _write,
    ("POST", "/v1/views/rename"): _rename,
}
"""What each route of the protocol needs, also of those that are not served."""


class CatalogAccess:
    """Without tokens and clients, every local user has all rights."""

    def __init__(self, options: Options, tokens: Tokens, login: Login | None, clients: Mapping[str, Grants]) -> None:
        self._hosts = Access(options)
        self._hint = options.token_hint
        self._static = [
            (token.encode(), grants)
            for token, grants in ((options.token, TOKEN), (options.read_token, READ_TOKEN))
            if token is not None
        ]
        self._tokens = tokens
        self._clients = clients
        self.login = login

    @classmethod
    def of(cls, settings: CatalogSettings, options: Options) -> Self:
        """Raises ConfigError if a file with a secret can't be read."""
        secrets = {name: client.secret_text() for name, client in settings.clients.items()}
        key = settings.signing_key()
        tokens = Tokens(
            randomness.token_bytes(_KEY_BYTES) if key is None else key.encode(), secrets, settings.token_lifetime_s
        )
        login = Login(secrets, tokens, LoginLimit()) if secrets else None
        grants = {name: Grants(name, client.grants) for name, client in settings.clients.items()}
        return cls(options, tokens, login, grants)

    def require_declared(self, method: str, path: str) -> None:
        """Call for each route that is added: one without a declaration would refuse every request."""
        if (method, path) not in ROUTES and (method, path) not in OPEN:
            raise LookupError(f"{method} {path} does not declare what it needs: add it to ROUTES")

    def identify(self, request: web.Request) -> None:
        """Raises the error for a caller that is not known, without reading the body. `grants_of` returns the caller's
        rights after it. The error of an unknown path is for known callers, too.
        """
        self._hosts.require_host(request)
        if _route(request) not in OPEN:
            request[_GRANTS] = self._grants(request)

    async def authorize(self, request: web.Request) -> None:
        """Raises the error for a caller without the rights that the route needs. Call it after `identify`."""
        route = _route(request)
        if route is None or route in OPEN:
            return
        if route not in ROUTES:
            raise Forbidden(f"{route[0]} {route[1]} does not declare what it needs")
        for need in await ROUTES[route](request):
            require(grants_of(request), need.namespace, write=need.write)

    def _grants(self, request: web.Request) -> Grants:
        if not self._static and not self._clients:
            return ANONYMOUS
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        given = given.strip()
        if scheme.lower() != "bearer" or not given:
            raise NotAuthorized(f"a token is required: {self._way_to_a_token}")
        found = [
            grants
            for token, grants in self._static
            if hmac.compare_digest(given.encode(errors="surrogateescape"), token)
        ]
        if found:
            return found[0]
        try:
            return self._clients[self._tokens.client_of(given)]
        except TokenRefused as error:
            raise NotAuthorized(str(error)) from error

    @property
    def _way_to_a_token(self) -> str:
        return self._hint if self.login is None else f"log in with the client's id and secret at {LOGIN}"


def _route(request: web.Request) -> tuple[str, str] | None:
    """Returns method and pattern of the route; None for an unknown path."""
    resource = request.match_info.route.resource
    return None if resource is None else (request.method, resource.canonical)


def grants_of(request: web.Request) -> Grants:
    """Returns the rights of the caller, in a handler."""
    return request[_GRANTS]


def require(grants: Grants, namespace: str, *, write: bool) -> None:
    """Raises Forbidden unless the caller may read, or write, this namespace."""
    if not grants.allow(namespace, write=write):
        verb = "write" if write else "read"
        raise Forbidden(f"{grants.caller} may not {verb} the namespace {namespace}")
