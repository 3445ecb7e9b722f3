"""The HTTP client of commands: one request at a time, blocking, without a proxy."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from astha.errors import AsthaError, ConfigError

_TIMEOUT_S = 10.0
_STREAM_TIMEOUT_S = 30.0
"""For a stream of events: the daemon sends an empty line every ten seconds."""


class NoDaemon(AsthaError):
    """No daemon responds: start it, or give its address."""


class Refused(AsthaError):
    """The daemon refused the request, for the reason in the message. `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    def __init__(self, url: str, token: str | None = None, ca_file: Path | None = None) -> None:
        """`ca_file` has the certificate authorities to trust, instead of the system's."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is not the address of a daemon, such as http://127.0.0.1:27840")
        self._tls = _trusting(ca_file) if parts.scheme == "https" else None
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._url = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str) -> Any:
        with self._request("GET", path, _TIMEOUT_S) as response:
            return _decoded(response)

    def post(self, path: str) -> Any:
        with self._request("POST", path, _TIMEOUT_S) as response:
            return _decoded(response)

    def lines(self, path: str, **query: str | None) -> Iterator[bytes]:
        """Yields the lines of a stream as they arrive, until the daemon ends it."""
        given = {name: value for name, value in query.items() if value is not None}
        with self._request("GET", f"{path}?{urlencode(given)}", _STREAM_TIMEOUT_S) as response:
            while line := response.readline():
                yield line.strip()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)

    @contextmanager
    def _request(self, method: str, path: str, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection(timeout_s)
        try:
            connection.request(method, self._prefix + path, headers=self._headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise Refused(_reason(response), response.status)
            yield response
        except ssl.SSLCertVerificationError as error:
            raise NoDaemon(
                f"the daemon at {self._url} has a certificate that is not trusted: {error.verify_message}: "
                "set server.tls_ca_file to the authority that signed it, and use a name in it (--server)"
            ) from error
        except TimeoutError as error:
            raise NoDaemon(f"the daemon at {self._url} does not respond in time") from error
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NoDaemon(
                f"no daemon responds at {self._url} ({why}): start one with `astha run`, or give its address (--server)"
            ) from error
        finally:
            connection.close()


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"server.tls_ca_file {ca_file} can't be used: {error}: it must contain certificates in PEM"
        ) from error


def _decoded(response: http.client.HTTPResponse) -> Any:
    return json.loads(response.read())


def _reason(response: http.client.HTTPResponse) -> str:
    try:
        body = _decoded(response)
        return str(body["error"]) if "error" in body else "; ".join(body["reasons"])
    except (ValueError, KeyError, TypeError):
        return f"the daemon responded {response.status} {response.reason}"
