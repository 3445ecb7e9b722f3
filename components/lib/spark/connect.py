"""A session on a Spark Connect server, which others may use too: no JVM here, and no RDDs there."""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from astha.redaction import Concealment
from components.compactor.spark import worker
from components.lib.spark.error_mapping import explain
from components.lib.spark.errors import SessionLost, SessionProblem, SparkError
from components.lib.spark.session import Job
from components.lib.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_KEEPALIVE_MS = 10_000
_GONE = (
    "INVALID_HANDLE",
    "SESSION_NOT_FOUND",
    "SESSION_CHANGED",
    "SESSION_CLOSED",
    "NO_ACTIVE_SESSION",
    "closed channel",
)


class ConnectSession:
    def __init__(self, settings: SparkSettings, conceal: Concealment | None = None) -> None:
        """``conceal`` learns the secrets among the options, and the token within the address."""
        self._settings = settings
        self._conceal = Concealment() if conceal is None else conceal
        self._conceal.add(*settings.secrets())
        self._session: SparkSession | None = None

    @property
    def pid(self) -> int | None:
        return None

    @property
    def session(self) -> SparkSession:
        """For who wants to run other queries in the same session."""
        if self._session is None:
            raise SessionLost("the Spark session was closed")
        return self._session

    def start(self) -> None:
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.session import SparkSession

        options = [
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        try:
            self._session = SparkSession(DefaultChannelBuilder(self._settings.master, options))
            client = self._session.client
            # A plan that is sent again would be a second attempt. Who has a task to run decides that.
            client.set_retry_policies([])
            client.disable_reattachable_execute()
            for name, value in self._settings.options.items():
                self._session.conf.set(name, value.get_secret_value())
            self.ping()
        except Exception as error:
            self.close(1.0)
            raise SessionProblem(
                f"no Spark session at {self._settings.place} ({self._words(error)}): is a Spark Connect server there?"
            ) from error

    def run(self, job: Job) -> bytes:
        session = self.session
        session.addTag(job.name)
        try:
            frame = session.range(0, 1, 1, 1).mapInArrow(partial(worker.attempts, job.order), "answer binary")
            (row,) = frame.collect()
            return bytes(row[0])
        finally:
            session.removeTag(job.name)

    def cancel(self, job: Job) -> None:
        self.session.interruptTag(job.name)

    def ping(self) -> None:
        if not self.session.version:
            raise SessionLost("the Spark Connect server does not tell its version")

    def explain(self, error: Exception) -> SparkError:
        import grpc

        if isinstance(error, SparkError):
            return error
        text = self._conceal(str(error))
        code = getattr(error, "getGrpcStatusCode", lambda: None)()
        gone = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
        if gone or isinstance(error, grpc.RpcError) or any(words in text for words in _GONE):
            return SessionLost(f"the Spark Connect server at {self._settings.place} went away: {self._words(error)}")
        return explain(text)

    def close(self, limit_s: float) -> None:
        session, self._session = self._session, None
        if session is not None:
            with warnings.catch_warnings(), suppress(Exception):  # of a server that has gone
                warnings.simplefilter("ignore")
                session.stop()

    def _words(self, error: Exception) -> str:
        return self._conceal(_words(error))


def _words(error: Exception) -> str:
    """Of a text that is mostly of gRPC."""
    text = str(error)
    if found := re.search(r'details = "([^"]+)"', text):
        return found[1]
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), type(error).__name__)
