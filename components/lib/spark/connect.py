"""A session on a Spark Connect server, which others may use too. There is no JVM here, and there are no RDDs."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from astha.redaction import Redactor
from components.lib.spark.error_mapping import explain
from components.lib.spark.errors import SessionLost, SessionProblem, SparkError
from components.lib.spark.pyspark_internals import open_connect_session
from components.lib.spark.session import SparkJob, call_per_row
from components.lib.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_KEEPALIVE_MS = 10_000
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    ("grpc.http2.max_pings_without_data", 0),
)
_SESSION_GONE = (
    "INVALID_HANDLE",
    "SESSION_NOT_FOUND",
    "SESSION_CHANGED",
    "SESSION_CLOSED",
    "NO_ACTIVE_SESSION",
    "closed channel",
)


class ConnectSession:
    def __init__(self, settings: SparkSettings, redact: Redactor | None = None) -> None:
        """``redact`` learns the secrets among the options, and the token in the address."""
        self._settings = settings
        self._redact = Redactor() if redact is None else redact
        self._redact.add(*settings.secrets())
        self._session: SparkSession | None = None

    @property
    def pid(self) -> int | None:
        return None

    @property
    def session(self) -> SparkSession:
        """PySpark's session object, to run other queries in the same session."""
        if self._session is None:
            raise SessionLost("the Spark session was closed")
        return self._session

    def start(self) -> None:
        try:
            self._session = open_connect_session(self._settings.master, _CHANNEL_OPTIONS)
            for name, value in self._settings.options.items():
                self._session.conf.set(name, value.get_secret_value())
            self.ping()
        except Exception as error:
            self.close(1.0)
            raise SessionProblem(
                f"no Spark session at {self._settings.address} ({self._reason(error)}): "
                "is a Spark Connect server there?"
            ) from error

    def run(self, job: SparkJob) -> bytes:
        session = self.session
        session.addTag(job.name)
        try:
            work = partial(call_per_row, job.function, job.payload)
            (row,) = session.range(0, 1, 1, 1).mapInArrow(work, "answer binary").collect()
            return bytes(row[0])
        finally:
            session.removeTag(job.name)

    def cancel(self, job: SparkJob) -> None:
        self.session.interruptTag(job.name)

    def ping(self) -> None:
        if not self.session.version:
            raise SessionLost("the Spark Connect server does not report its version")

    def explain(self, error: Exception) -> SparkError:
        import grpc

        if isinstance(error, SparkError):
            return error
        text = self._redact(str(error))
        code = getattr(error, "getGrpcStatusCode", lambda: None)()
        gone = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
        if gone or isinstance(error, grpc.RpcError) or any(words in text for words in _SESSION_GONE):
            return SessionLost(f"the Spark Connect server at {self._settings.address} went away: {self._reason(error)}")
        return explain(text)

    def close(self, limit_s: float) -> None:
        session, self._session = self._session, None
        if session is not None:
            with warnings.catch_warnings(), suppress(Exception):  # the server may be gone
                warnings.simplefilter("ignore")
                session.stop()

    def _reason(self, error: Exception) -> str:
        return self._redact(_reason(error))


def _reason(error: Exception) -> str:
    """Returns what the server said, out of gRPC's long text."""
    text = str(error)
    if found := re.search(r'details = "([^"]+)"', text):
        return found[1]
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), type(error).__name__)
