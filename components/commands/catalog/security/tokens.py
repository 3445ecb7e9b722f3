"""The tokens of clients: signed and not stored, so that every process with the same key accepts them.

A token is a JSON Web Token (RFC 7519) with the algorithm HS256 and the claims `sub` (the client), `iat` and `exp`. Only
the header that is written here is accepted. Each client has a key of its own, derived from the signing key and the
client's secret: a new secret ends the tokens of the old one.
"""

from __future__ import annotations

import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from hashlib import sha256

import msgspec

_CONTEXT = b"astha catalog token 1"
_MAX_LENGTH = 1_000


class TokenRefused(Exception):
    """The token is not valid; the message says why, without the token."""


class _Claims(msgspec.Struct):
    sub: str
    iat: int
    exp: int


_decode = msgspec.json.Decoder(_Claims).decode


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


_HEADER = _encoded(b'{"alg":"HS256","typ":"JWT"}')


class Tokens:
    """Issues and checks tokens of the clients in `secrets`, name -> secret."""

    def __init__(
        self, key: bytes, secrets: Mapping[str, str], lifetime_s: int, now: Callable[[], float] = time.time
    ) -> None:
        self.lifetime_s = lifetime_s
        self._now = now
        self._keys = {client: _derived(key, client, secret) for client, secret in secrets.items()}

    def issue(self, client: str) -> str:
        now = int(self._now())
        claims = _encoded(msgspec.json.encode(_Claims(client, now, now + self.lifetime_s)))
        return f"{_HEADER}.{claims}.{_signature(self._keys[client], claims)}"

    def client_of(self, token: str) -> str:
        """Returns the client that the token was issued to. Raises TokenRefused."""
        claims, body, signature = _parsed(token)
        key = self._keys.get(claims.sub)
        if key is None or not hmac.compare_digest(_signature(key, body).encode(), signature.encode()):
            raise TokenRefused("the token is not valid for this server")
        if claims.exp <= self._now():
            raise TokenRefused("the token has expired: ask for a new one")
        return claims.sub


def claimed_client(token: str) -> str | None:
    """Returns the client that a token names, without a check of its signature; None if it is no token of ours."""
    try:
        return _parsed(token)[0].sub
    except TokenRefused:
        return None


def _parsed(token: str) -> tuple[_Claims, str, str]:
    parts = token.split(".") if len(token) <= _MAX_LENGTH and token.isascii() else []
    if len(parts) != 3 or parts[0] != _HEADER:
        raise TokenRefused("the token is not valid for this server")
    _, body, signature = parts
    try:
        return _decode(urlsafe_b64decode(body + "=" * (-len(body) % 4))), body, signature
    except (NotBase64, ValueError, msgspec.MsgspecError) as error:
        raise TokenRefused("the token is not valid for this server") from error


def _derived(key: bytes, client: str, secret: str) -> bytes:
    return hmac.digest(key, b"\0".join((_CONTEXT, client.encode(), sha256(secret.encode()).digest())), sha256)


def _signature(key: bytes, claims: str) -> str:
    return _encoded(hmac.digest(key, f"{_HEADER}.{claims}".encode(), sha256))
