"""`POST /v1/oauth/tokens`: a client proves its secret and gets a token (RFC 6749, client credentials).

Every token costs a proof of the secret, so one that leaks ends with its lifetime. Iceberg's Java client renews a token
by an exchange (RFC 8693), first with the token alone, which is refused, then with its secret in the header, which is
the same proof.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_plus

import msgspec
import structlog
from aiohttp import web

from components.commands.catalog.security.login_limit import LoginLimit
from components.commands.catalog.security.tokens import Tokens, claimed_client

log = structlog.get_logger(__name__)

_CREDENTIALS = "client_credentials"
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  (the name of a type)
_SCOPE = "catalog"
_UNKNOWN = "unknown"
_FORM = "application/x-www-form-urlencoded"
_MAX_BYTES = 16 * 1024
_MAX_FIELDS = 30
_NOT_STORED = {"Cache-Control": "no-store", "Pragma": "no-cache"}


class LoginError(Exception):
    """A refused login, as OAuth2 wants it."""

    def __init__(self, error: str, description: str, status: int = 400, retry_after_s: int = 0) -> None:
        super().__init__(description)
        self.error, self.status, self.retry_after_s = error, status, retry_after_s

    def response(self) -> web.Response:
        headers = dict(_NOT_STORED)
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Basic realm="astha"'
        if self.retry_after_s:
            headers["Retry-After"] = str(self.retry_after_s)
        return _json({"error": self.error, "error_description": str(self)}, self.status, headers)


class _Proof(NamedTuple):
    client: str
    secrets: list[str]  # the ways to read it: in a header it may be percent-encoded


class Login:
    def __init__(self, secrets: Mapping[str, str], tokens: Tokens, limit: LoginLimit) -> None:
        self._digests = {client: sha256(secret.encode()).digest() for client, secret in secrets.items()}
        self._tokens = tokens
        self._limit = limit

    async def handle(self, request: web.Request) -> web.Response:
        try:
            client = self._login(await _form(request), request)
        except LoginError as error:
            return error.response()
        token = {
            "access_token": self._tokens.issue(client),
            "token_type": "bearer",
            "expires_in": self._tokens.lifetime_s,
            "issued_token_type": _ACCESS_TOKEN,
            "scope": _SCOPE,
        }
        return _json(token, 200, _NOT_STORED)

    def _login(self, form: Mapping[str, str], request: web.Request) -> str:
        grant = form.get("grant_type")
        if grant is None:
            raise LoginError("invalid_request", "grant_type is missing: send grant_type=client_credentials")
        if grant not in (_CREDENTIALS, _EXCHANGE):
            raise LoginError("unsupported_grant_type", "only grant_type=client_credentials is supported")
        basic = _basic(request)
        if grant == _EXCHANGE:
            _require_own_token(basic, form)
        return self._proven(basic or _proof_of(form), request)

    def _proven(self, proof: _Proof, request: web.Request) -> str:
        """Returns the client if its secret is right. The comparison takes the same time for unknown clients."""
        known = proof.client if proof.client in self._digests else _UNKNOWN
        wait_s = self._limit.wait_s(request.remote, known)
        if wait_s:
            raise LoginError("invalid_request", f"too many failed logins: wait {wait_s} s", 429, wait_s)
        expected = self._digests.get(proof.client, bytes(32))
        given = [sha256(secret.encode(errors="surrogatepass")).digest() for secret in proof.secrets]
        right = [hmac.compare_digest(digest, expected) for digest in given]
        if not any(right):
            self._limit.failed(request.remote, known)
            log.warning("login refused", client=known, address=request.remote)
            raise LoginError("invalid_client", "the client or its secret is not valid for this server", 401)
        return proof.client


async def _form(request: web.Request) -> dict[str, str]:
    if request.content_type != _FORM:
        raise LoginError("invalid_request", f"send the parameters as {_FORM}")
    if request.content_length is None or request.content_length > _MAX_BYTES:
        raise LoginError("invalid_request", f"send at most {_MAX_BYTES} bytes, and their number as Content-Length")
    try:
        fields = parse_qsl(
            (await request.read()).decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict"
        )
    except ValueError as error:  # UnicodeDecodeError is one
        raise LoginError("invalid_request", "the parameters are not a form in UTF-8") from error
    if len({name for name, _ in fields}) != len(fields):
        raise LoginError("invalid_request", "a parameter is given twice")
    return {name: value for name, value in fields if value}


def _basic(request: web.Request) -> _Proof | None:
    """Returns the header's client and secret. RFC 6749 wants them percent-encoded, Iceberg's clients do not."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None  # a client that renews its token may send the old one
    try:
        name, colon, secret = b64decode(given.strip(), validate=True).decode().partition(":")
    except (NotBase64, ValueError) as error:
        raise LoginError("invalid_client", "the Authorization header is not Basic base64(id:secret)", 401) from error
    if not colon:
        raise LoginError("invalid_client", "the Authorization header has no client: send id:secret", 401)
    return _Proof(name, [secret, unquote_plus(secret)])


def _proof_of(form: Mapping[str, str]) -> _Proof:
    client, secret = form.get("client_id"), form.get("client_secret")
    if client is None or secret is None:
        raise LoginError("invalid_client", "client_id or client_secret is missing: set credential=NAME:SECRET", 401)
    return _Proof(client, [secret])


def _require_own_token(basic: _Proof | None, form: Mapping[str, str]) -> None:
    """Accepts an exchange only to renew a client's own token, with the client's secret."""
    if basic is None or "actor_token" in form or claimed_client(form.get("subject_token", "")) != basic.client:
        raise LoginError(
            "unsupported_grant_type",
            "tokens are not exchanged: ask for a new one with grant_type=client_credentials, the client's id and its "
            "secret",
        )


def _json(value: object, status: int, headers: Mapping[str, str]) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json", headers=headers
    )
