"""Opens kafka-python's clients, and says why a broker can't be used.

kafka-python reports a wrong password, a failed TLS handshake and a refused connection all as a timeout, and writes the
cause to its log only. So its log is read here. It also leaves sockets of failed connections to the garbage collector,
which the daemon runs rarely: they are closed here. Everything here blocks.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket

from astha.errors import SourceLost
from astha.settings.source import KafkaSourceSettings, StreamAddress
from astha.sources.broker_tls import tls_context

T = TypeVar("T")

_RECONNECT_MAX_MS = 1_000


class BrokerRefuses(SourceLost):
    """A broker was reached and can't be used until the settings are corrected."""


class Connection(msgspec.Struct, frozen=True):
    """Where a topic is, and how to connect to its brokers."""

    address: StreamAddress
    settings: KafkaSourceSettings

    @property
    def user(self) -> str | None:
        return self.address.user or self.settings.user

    @property
    def password(self) -> str | None:
        password = self.settings.password
        return self.address.password or (None if password is None else password.get_secret_value())

    def consumer(self, client_id: str, group: str | None) -> KafkaConsumer:
        """Raises SourceLost if no broker can be reached, BrokerRefuses if one refuses this client."""
        return self.open(
            KafkaConsumer,
            client_id,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            fetch_min_bytes=1,
            fetch_max_wait_ms=500,
            fetch_max_bytes=self.settings.fetch_max_bytes,
            max_partition_fetch_bytes=self.settings.fetch_max_bytes,
            max_poll_records=2_000,
            request_timeout_ms=int(self.settings.request_timeout_s * 1000),
            metrics_enabled=False,
        )

    def open(self, kind: Callable[..., T], client_id: str, **options: Any) -> T:
        opened: list[KafkaNetClient] = []

        def net_client(**configs: Any) -> KafkaNetClient:
            opened.append(KafkaNetClient(**configs))
            return opened[-1]

        _failure_log.take(client_id)
        try:
            return kind(**self._common(client_id), kafka_client=net_client, **options)
        except (KafkaError, OSError) as error:
            for client in opened:
                client.close()
            raise self._explained(error, _failure_log.take(client_id)) from error

    def _common(self, client_id: str) -> dict[str, Any]:
        settings, user = self.settings, self.user
        found: dict[str, Any] = {
            "bootstrap_servers": self.address.hosts,
            "client_id": client_id,
            "bootstrap_timeout_ms": int(settings.connect_timeout_s * 1000),
            "reconnect_backoff_max_ms": _RECONNECT_MAX_MS,
            "proxy_url": f"{_ClosingSocket.SCHEMES[0]}://",
            "security_protocol": f"{'SASL_' if user else ''}{'SSL' if settings.tls else 'PLAINTEXT'}",
        }
        if settings.tls:
            found["ssl_context"] = tls_context(settings, "source.kafka")
        if user:
            found["sasl_mechanism"] = settings.sasl_mechanism
            found["sasl_plain_username"] = user
            found["sasl_plain_password"] = self.password or ""
        return found

    def _explained(self, error: Exception, logged: Sequence[str]) -> SourceLost:
        servers, user = ", ".join(self.address.hosts), self.user
        text = " ".join((*logged, str(error)))
        if user and "SaslAuthenticationFailed" in text:
            mechanism = self.settings.sasl_mechanism
            return BrokerRefuses(f"the broker at {servers} refused user {user!r} ({mechanism}): wrong name or password")
        if "UnsupportedSaslMechanism" in text:
            return BrokerRefuses(
                f"the broker at {servers} does not support {self.settings.sasl_mechanism}: "
                "correct source.kafka.sasl_mechanism"
            )
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return BrokerRefuses(
                f"the certificate of the broker at {servers} is not trusted: set source.kafka.ca_file, "
                "or check_hostname if it is for another name"
            )
        if "[SSL" in text and self.settings.tls:
            return BrokerRefuses(f"TLS with the broker at {servers} failed: does this listener use TLS?")
        if "ECONNREFUSED" in text:
            return SourceLost(f"nothing listens at {servers}: is the broker running, and is source.url right?")
        if "socket disconnected" in text and user:  # brokers close the connection after a wrong SCRAM proof
            return BrokerRefuses(
                f"the broker at {servers} refused user {user!r} ({self.settings.sasl_mechanism}): most likely a "
                "wrong name or password"
            )
        if "socket disconnected" in text:
            return SourceLost(
                f"the broker at {servers} closed the connection: does this listener expect TLS or a password?"
            )
        return SourceLost(f"no Kafka broker can be reached at {servers}: {describe(error)}")


def describe(error: BaseException) -> str:
    """Returns the error on one line, without the requests that kafka-python appends."""
    text = " ".join(str(error).split("failed with response")[0].split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


class _ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """Connects without a proxy, and closes its socket if that fails."""

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _FailureLog(logging.Handler):
    """Keeps what kafka-python logs while clients connect, by thread: each client's I/O thread has its name, or it
    connects in the caller's thread.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kept: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=20))

    def emit(self, record: logging.LogRecord) -> None:
        self._kept[str(record.threadName)].append(record.getMessage())

    def take(self, client: str) -> Sequence[str]:
        threads = (threading.current_thread().name, f"kafka-io-{client}", f"{client}-network-thread")
        return [message for name in threads for message in self._kept.pop(name, ())]


_failure_log = _FailureLog()
_library_log = logging.getLogger("kafka")
_library_log.addHandler(_failure_log)
_library_log.propagate = False  # it logs every attempt; the source reports the cause once
