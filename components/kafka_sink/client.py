"""Opens kafka-python's clients, and says why a broker can't be used.

kafka-python reports a wrong password, a failed TLS handshake and a refused connection all as a timeout, and writes the
cause to its log only. So its log is read here. It also leaves sockets and threads of failed connections to the garbage
collector, which the daemon runs rarely: they are closed here.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket

from components.kafka_sink.errors import BrokerUnusable, cause_of
from components.kafka_sink.settings import KafkaSinkSettings, TlsSettings

T = TypeVar("T")

_RECONNECT_MAX_MS = 1_000
_NEVER_MS = 7 * 86_400_000
_BATCH_BYTES = 256 * 1024
_LINGER_MS = 20
"""Fills batches while a delivery sends. It delays no delivery: each one ends with a flush."""

_FETCH_BYTES = 4 * 1024 * 1024


class KafkaClients:
    """Opens clients with one sink's settings. Every method blocks, so it is called from the sink's threads."""

    def __init__(self, settings: KafkaSinkSettings, name: str) -> None:
        self._settings = settings
        self._name = name

    def producer(self) -> KafkaProducer:
        """Returns an idempotent producer. It retries a record for as long as it is open: with the same producer a retry
        is neither duplicated nor reordered.
        """
        settings = self._settings
        compression = None if settings.compression == "none" else settings.compression
        return self._open(
            KafkaProducer,
            "producer",
            acks="all",
            enable_idempotence=True,
            compression_type=compression,
            batch_size=min(_BATCH_BYTES, settings.max_request_bytes),
            linger_ms=_LINGER_MS,
            max_request_size=settings.max_request_bytes,
            max_block_ms=int(settings.connect_timeout_s * 1000),
            delivery_timeout_ms=_NEVER_MS,
            request_timeout_ms=int(settings.request_timeout_s * 1000),
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    def admin(self) -> KafkaAdminClient:
        return self._open(KafkaAdminClient, "admin", request_timeout_ms=int(self._settings.connect_timeout_s * 1000))

    def consumer(self) -> KafkaConsumer:
        return self._open(
            KafkaConsumer,
            "consumer",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_FETCH_BYTES,
            max_poll_records=2_000,
            request_timeout_ms=int(self._settings.request_timeout_s * 1000),
            metrics_enabled=False,
        )

    def _open(self, kind: Callable[..., T], purpose: str, **options: Any) -> T:
        opened: list[KafkaNetClient] = []

        def net_client(**configs: Any) -> KafkaNetClient:
            opened.append(KafkaNetClient(**configs))
            return opened[-1]

        name = f"astha-{self._name}-{purpose}"
        with _collected_failures(name) as failures:
            try:
                return kind(**_common(self._settings, name), kafka_client=net_client, **options)
            except (KafkaError, OSError, ssl.SSLError) as error:
                for client in opened:
                    client.close()
                raise BrokerUnusable(cause_of(self._settings, error, failures())) from error


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
        client.close(autocommit=False)
    else:
        client.close()


def _common(settings: KafkaSinkSettings, client_id: str) -> dict[str, Any]:
    tls, sasl = settings.tls, settings.sasl
    found: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": client_id,
        "bootstrap_timeout_ms": int(settings.connect_timeout_s * 1000),
        "reconnect_backoff_max_ms": _RECONNECT_MAX_MS,
        "proxy_url": f"{_ClosingSocket.SCHEMES[0]}://",
        "security_protocol": f"{'SASL_' if sasl else ''}{'SSL' if tls else 'PLAINTEXT'}",
    }
    if tls is not None:
        found["ssl_context"] = _tls_context(tls)
    if sasl is not None:
        found["sasl_mechanism"] = sasl.mechanism
        found["sasl_plain_username"] = sasl.user
        found["sasl_plain_password"] = sasl.password.get_secret_value()
    return found


def _tls_context(tls: TlsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if tls.ca is None else str(tls.ca))
        context.check_hostname = tls.check_hostname
        if tls.certificate is not None and tls.key is not None:
            password = None if tls.key_password is None else tls.key_password.get_secret_value()
            context.load_cert_chain(str(tls.certificate), str(tls.key), password or "")
    except OSError as error:  # SSLError is one
        raise BrokerUnusable(f"the TLS files of this sink can't be read: {error}: correct its setting `tls`") from error
    context.sslsocket_class = _ClosingTlsSocket
    return context


class _ClosingSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """Connects without a proxy, and closes its socket if that fails."""

    SCHEMES = ("direct",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _ClosingTlsSocket(ssl.SSLSocket):
    """Closes itself if the handshake fails."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self.close()
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
_library_log.propagate = False  # it logs every attempt; the component reports the cause once


@contextmanager
def _collected_failures(client: str) -> Iterator[Callable[[], Sequence[str]]]:
    _failure_log.take(client)
    yield lambda: _failure_log.take(client)
