"""Who may: one token, compared in constant time."""

from __future__ import annotations

import hmac

from aiohttp import web

from astha.errors import ConfigError
from astha.settings import ServerSettings

_HINT = "set server.token (ASTHA_SERVER__TOKEN) for the daemon and for the caller"


class Access:
    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    @classmethod
    def of(cls, settings: ServerSettings) -> Access:
        """ConfigError if others than this machine could reach the server without a token."""
        token = settings.secret()
        if token is None and not settings.loopback:
            raise ConfigError(
                f"server.host is {settings.host}, which others can reach: {_HINT}, or listen on 127.0.0.1"
            )
        return cls(token)

    def require(self, request: web.Request) -> None:
        """For what changes state: without a token nobody may."""
        if self._token is None:
            raise web.HTTPForbidden(text=f"this daemon has no token, so nothing may be changed through it: {_HINT}")
        self._compare(request)

    def require_if_set(self, request: web.Request) -> None:
        """For what shows rows: without a token, everybody on this machine may."""
        if self._token is not None:
            self._compare(request)

    def _compare(self, request: web.Request) -> None:
        assert self._token is not None  # noqa: S101  (both callers looked)
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise web.HTTPUnauthorized(
                text=f"a token is needed: {_HINT}", headers={"WWW-Authenticate": 'Bearer realm="astha"'}
            )
        if not hmac.compare_digest(given.strip().encode(errors="surrogateescape"), self._token):
            raise web.HTTPForbidden(text="the token is not this daemon's")
