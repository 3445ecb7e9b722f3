"""Keeps secrets out of everything that is printed, logged or served, messages of libraries included.

Values are redacted before they are encoded: in text that is JSON already, the password `state` would mask a key, and a
password with a quote would break the syntax.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any
from urllib.parse import quote, quote_plus, unquote

MASK = "***"

_SHORTEST = 4
"""Shorter secrets would mask ordinary text; they are still never printed as a setting."""

_SECRET_NAMES = ("secret", "token", "password", "passwd", "passphrase", "credential", "key")
_NEVER_SECRET = (bool, int, float, type(None))

_USERINFO = re.compile(r"(?P<user>\b[a-z][a-z0-9+.-]*://[^\s:/@'\"]*:)(?P<password>[^\s/?#'\"]+)@", re.IGNORECASE)
"""Up to the last ``@`` before the path: the password may contain an unescaped one."""

_PARAMETER = re.compile(
    r"\b(?P<name>(?:ssl)?password|passwd|token)=(?P<value>'(?:[^'\\]|\\.)*'|[^\s&;,'\"]+)", re.IGNORECASE
)
"""Parameters of libpq's connection strings, of JDBC's and Spark Connect's URLs, and of query strings."""


class Redactor:
    """Masks each known secret, plain or escaped as in URLs and JSON, and any password within a URL.

    Secrets can be added at any time, from any thread: text redacted afterwards does not show them.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lock = Lock()
        self._secrets: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self.add(*secrets)

    @property
    def secrets(self) -> frozenset[str]:
        return self._secrets

    def add(self, *secrets: str) -> None:
        with self._lock:
            known = self._secrets.union(secret for secret in secrets if len(secret) >= _SHORTEST)
            if known != self._secrets:
                spellings = {spelling for secret in known for spelling in _spellings(secret)}
                longest_first = sorted(spellings, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, longest_first)))
                self._secrets = known

    def __call__(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        if "://" in text:
            text = _USERINFO.sub(rf"\g<user>{MASK}@", text)
        return _PARAMETER.sub(rf"\g<name>={MASK}", text) if "=" in text else text

    def values(self, value: Any) -> Any:
        """Returns the value with every string in it redacted. Keys of mappings stay: callers rely on them."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, _NEVER_SECRET):
            return value
        if isinstance(value, Mapping):
            return {key: self.values(item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.values(item) for item in value]
        return self._object(value)

    def _object(self, value: object) -> object:
        """Returns the object itself, or the redacted text if its str or repr shows a secret."""
        for text in (str(value), repr(value)):
            masked = self(text)
            if masked != text:
                return masked
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Redactor) and self._secrets == other._secrets

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __reduce__(self) -> tuple[type[Redactor], tuple[tuple[str, ...]]]:
        return Redactor, (tuple(self._secrets),)


def is_secret_name(name: str) -> bool:
    """Returns whether a setting of that name, of any library, is likely to hold a secret."""
    return any(part in name.lower() for part in _SECRET_NAMES)


def secrets_in_url(text: str) -> Iterator[str]:
    """Yields the passwords in a URL or a connection string, as written and unescaped."""
    for found in _USERINFO.finditer(text):
        yield from (found["password"], unquote(found["password"]))
    for found in _PARAMETER.finditer(text):
        value = found["value"].strip("'")
        yield from (value, unquote(value))


def secrets_in(settings: Any, name: str = "") -> Iterator[str]:
    """Yields the values of nested settings that are named like a secret, and the passwords within URLs."""
    if isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from secrets_in(value, str(key))
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            yield from secrets_in(value, name)
    elif isinstance(settings, str):
        if is_secret_name(name):
            yield settings
        yield from secrets_in_url(settings)


def _spellings(secret: str) -> Iterator[str]:
    yield from (secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1])


NO_SECRETS = Redactor()
"""For callers that know no secret. It is shared: never add one."""
