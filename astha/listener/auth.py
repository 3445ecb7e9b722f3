"""Access control: Host and Origin against DNS rebinding, and tokens, compared in constant time."""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web

from astha.listener.options import Options

_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class Access:
    def __init__(self, options: Options) -> None:
        self._token_hint = options.token_hint
        self._group = options.group
        self._write = None if options.token is None else options.token.encode()
        self._read = None if options.read_token is None else options.read_token.encode()
        self._open = options.open_paths
        self._hosts = options.hosts
        self._any_address = options.any_address

    def require_host(self, request: web.Request) -> None:
        """Refuses a page whose name was pointed at this machine: it sends its own name as Host, or a foreign Origin."""
        host = request.headers.get("Host", "")
        if not self._known(host):
            raise web.HTTPForbidden(
                text=f"Host {host[:200]!r} is not a name of this server: add it to {self._group}.allowed_hosts"
            )
        origin = request.headers.get("Origin")
        if origin is not None and _authority(origin) != _authority(f"{request.scheme}://{host}"):
            raise web.HTTPForbidden(
                text=f"Origin {origin[:200]!r} is not this server's: other sites' pages may not call it"
            )

    def _known(self, host: str) -> bool:
        found = _authority(f"http://{host}")
        if found is None:
            return False
        name = found[0]
        if "*" in self._hosts or name in self._hosts or name in _LOOPBACK_NAMES:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback

    def require_write(self, request: web.Request) -> None:
        """For requests that change state. Refuses all of them if the daemon has no token."""
        if self._write is None:
            raise web.HTTPForbidden(text=f"this server has no token, so it accepts no changes: {self._token_hint}")
        given = self._given(request)
        if not hmac.compare_digest(given, self._write):
            if self._read is not None and hmac.compare_digest(given, self._read):
                raise web.HTTPForbidden(text=f"this token only allows reading: use {self._group}.token to change state")
            raise web.HTTPForbidden(text="the token is not valid for this server")

    @property
    def accepts_changes(self) -> bool:
        return self._write is not None

    def may_write(self, request: web.Request) -> bool:
        try:
            self.require_write(request)
        except web.HTTPException:
            return False
        return True

    def require_read(self, request: web.Request, path: str) -> None:
        """For requests that show names or rows. If the daemon has no token, every local user may read."""
        if path not in self._open and not self._anonymous_reads:
            given = self._given(request)
            if not any(hmac.compare_digest(given, token) for token in self._tokens):
                raise web.HTTPForbidden(text="the token is not valid for this server")

    def may_read(self, request: web.Request, path: str) -> bool:
        try:
            self.require_read(request, path)
        except web.HTTPException:
            return False
        return True

    @property
    def _tokens(self) -> list[bytes]:
        return [token for token in (self._write, self._read) if token is not None]

    @property
    def _anonymous_reads(self) -> bool:
        return not self._tokens

    def _given(self, request: web.Request) -> bytes:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise web.HTTPUnauthorized(
                text=f"a token is required: {self._token_hint}", headers={"WWW-Authenticate": 'Bearer realm="astha"'}
            )
        return given.strip().encode(errors="surrogateescape")


def _authority(url: str) -> tuple[str, int] | None:
    """Returns host in lower case and port, or None if the URL has no host or is malformed."""
    try:
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or "@" in parts.netloc
            or parts.path not in ("", "/")
        ):
            return None
        return parts.hostname.rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
