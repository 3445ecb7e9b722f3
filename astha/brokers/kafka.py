"""Opens kafka-python's clients, and says why a broker can't be used. Everything here blocks.

kafka-python reports a wrong password, a failed TLS handshake and a refused connection all as a timeout, and writes the
cause to its log only. So its log is read here. It also leaves sockets and threads of failed connections to the garbage
collector, which the daemon runs rarely: they are closed here. The canaries in `test_library_internals.py` fail when a
private part that is used below has changed.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket

from astha.brokers.errors import BrokerError
from astha.brokers.tls import tls_context
from astha.settings.brokers import SaslSettings, TlsSettings

T = TypeVar("T")

_RECONNECT_MAX_MS = 1_000
_KNOWN_VERSION = "broker_version=("


class KafkaConnection(msgspec.Struct, frozen=True):
    """How to connect to a cluster. `group` and `servers_setting` are the names of its settings in errors."""

    servers: tuple[str, ...]
    tls: TlsSettings | None
    sasl: SaslSettings | None
    connect_timeout_s: float
    servers_setting: str = "bootstrap_servers"
    group: str = ""  # with a dot at its end

    @property
    def principal(self) -> str:
        """Who is to be authorised."""
        return f"user {self.sasl.user!r}" if self.sasl is not None else "this client"

    @property
    def shown(self) -> str:
        return ", ".join(self.servers)

    def open(self, kind: Callable[..., T], client_id: str, **options: Any) -> T:
        """Raises BrokerError."""
        opened: list[KafkaNetClient] = []

        def net_client(**configs: Any) -> KafkaNetClient:
            opened.append(KafkaNetClient(**configs))
            return opened[-1]

        common = self._common(client_id)
        _failure_log.take(client_id)
        try:
            return kind(**common, kafka_client=net_client, **options)
        except (KafkaError, OSError) as error:  # SSLError is an OSError
            for client in opened:
                client.close()
            raise self.explain(error, _failure_log.take(client_id)) from error

    def _common(self, client_id: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap_servers": list(self.servers),
            "client_id": client_id,
            "bootstrap_timeout_ms": int(self.connect_timeout_s * 1000),
            "reconnect_backoff_max_ms": _RECONNECT_MAX_MS,
            "proxy_url": f"{_ClosingSocket.SCHEMES[0]}://",
            "security_protocol": f"{'SASL_' if self.sasl else ''}{'SSL' if self.tls else 'PLAINTEXT'}",
        }
        if self.tls is not None:
            found["ssl_context"] = tls_context(self.tls, f"{self.group}tls")
        if self.sasl is not None:
            found["sasl_mechanism"] = self.sasl.mechanism
            found["sasl_plain_username"] = self.sasl.user
            found["sasl_plain_password"] = self.sasl.password.get_secret_value()
        return found

    def explain(self, error: BaseException, logged: Sequence[str] = ()) -> BrokerError:
        """Returns why a client could not connect, from what kafka-python raised and logged."""
        broker = f"the broker at {self.shown}"
        text = " ".join((*logged, str(error)))
        return self._explain_login(broker, text) or self._explain_tls(broker, text) or self._explain(error, text)

    def _explain_login(self, broker: str, text: str) -> BrokerError | None:
        sasl = self.sasl
        if sasl is not None and "SaslAuthenticationFailed" in text:
            return BrokerError(
                f"{broker} refused user {sasl.user!r} ({sasl.mechanism}): wrong user name or password", lasting=True
            )
        if "UnsupportedSaslMechanism" in text:
            mechanism = sasl.mechanism if sasl else "none"
            return BrokerError(
                f"{broker} does not support SASL mechanism {mechanism}: correct `{self.group}sasl.mechanism`",
                lasting=True,
            )
        if sasl is not None and "socket disconnected" in text and _KNOWN_VERSION in text:
            # It has responded before, and closes the connection after a wrong SCRAM proof.
            return BrokerError(
                f"{broker} closed the connection while user {sasl.user!r} authenticated ({sasl.mechanism}): most "
                "likely a wrong user name or password",
                lasting=True,
            )
        return None

    def _explain_tls(self, broker: str, text: str) -> BrokerError | None:
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return BrokerError(
                f"the certificate of {broker} is not trusted: {_tls_detail(text)}: correct `{self.group}tls.ca`, or "
                f"`{self.group}tls.check_hostname` if it is for another name",
                lasting=True,
            )
        if self.tls is not None and ("[SSL" in text or "Handshake failed" in text):
            return BrokerError(
                f"TLS with {broker} failed: {_tls_detail(text)}: does this listener use TLS, and does it accept the "
                "client certificate?",
                lasting=True,
            )
        return None

    def _explain(self, error: BaseException, text: str) -> BrokerError:
        servers, setting = self.shown, f"`{self.servers_setting}`"
        if "ECONNREFUSED" in text:
            return BrokerError(f"nothing listens at {servers}: is the broker running, and is {setting} right?")
        if "DNS" in text:
            return BrokerError(f"the name of {servers} can't be resolved: correct {setting}")
        if "socket disconnected" in text:
            return BrokerError(
                f"the broker at {servers} closed the connection: does this listener expect TLS or a password?"
            )
        return BrokerError(f"no Kafka broker can be used at {servers}: {describe(error)}")


def close(client: KafkaProducer | KafkaConsumer | KafkaAdminClient, timeout_s: float = 2.0) -> None:
    """Closes a client. Records of a producer that are not acknowledged in time fail."""
    if isinstance(client, KafkaProducer):
        try:
            client.close(timeout=timeout_s)
        except KafkaError:  # raised before it closes anything
            client._sender.force_close()
            client._sender.join(timeout_s)
            client._closed = True
    elif isinstance(client, KafkaConsumer):
        client.close(autocommit=False, timeout_ms=int(timeout_s * 1000))
    else:
        client.close()


def known_partitions(consumer: KafkaConsumer, topic: str) -> set[int]:
    """Returns the topic's partitions by the last metadata, without asking the broker."""
    return set(consumer._cluster.partitions_for_topic(topic) or ())


def may_not_use(consumer: KafkaConsumer, topic: str) -> bool:
    """Whether the last metadata said so: kafka-python reports such a topic like one that does not exist."""
    return topic in consumer._cluster.unauthorized_topics


def describe(error: BaseException) -> str:
    """Returns the error on one line, without the requests that kafka-python appends."""
    text = " ".join(str(error).split("failed with response")[0].split())
    name = type(error).__name__
    if not text:
        return name
    return text[:300] if name in text else f"{name}: {text[:300]}"


def _tls_detail(text: str) -> str:
    start = text.find("[SSL")
    return text[start:].split(" (_ssl.c")[0][:200] if start >= 0 else "handshake failed"


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
_library_log.propagate = False  # it logs every attempt; its user reports the cause once
