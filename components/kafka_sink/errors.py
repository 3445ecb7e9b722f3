"""What is wrong with a broker or topic, in words that name the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from kafka import errors as kafka_errors

from astha.subscribers import Retry
from components.kafka_sink.settings import KafkaSinkSettings

_KNOWN_VERSION = "broker_version=("


class BrokerUnusable(Retry):
    """No broker can be reached, or it refuses this client."""


class NotAcknowledged(Retry):
    """Records were sent and not acknowledged in time. They stay in the producer, which keeps trying."""


class SendFailed(Retry):
    """A broker refused records for good, and the producer was closed."""


class TopicUnusable(Retry):
    """A topic is missing, has the wrong shape, or may not be used."""


def cause_of(settings: KafkaSinkSettings, error: BaseException, logged: Sequence[str]) -> str:
    """Returns why a client could not connect, from what kafka-python raised and logged."""
    servers = ", ".join(settings.bootstrap_servers)
    text = " ".join((*logged, str(error)))
    sasl = settings.sasl
    if sasl is not None and "SaslAuthenticationFailed" in text:
        return f"the broker at {servers} refused user {sasl.user!r} ({sasl.mechanism}): wrong user name or password"
    if "UnsupportedSaslMechanism" in text:
        mechanism = sasl.mechanism if sasl else "none"
        return f"the broker at {servers} does not support SASL mechanism {mechanism}: correct `sasl.mechanism`"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"the certificate of the broker at {servers} is not trusted: {_tls_detail(text)}: correct `tls.ca`"
    if settings.tls is not None and ("[SSL" in text or "Handshake failed" in text):
        return (
            f"TLS with the broker at {servers} failed: {_tls_detail(text)}: does this listener use TLS, and does it "
            "accept the client certificate?"
        )
    if "ECONNREFUSED" in text:
        return f"nothing listens at {servers}: is the broker running, and are `bootstrap_servers` right?"
    if "DNS" in text:
        return f"the name of {servers} can't be resolved: correct `bootstrap_servers`"
    if "socket disconnected" in text:
        if sasl is not None and _KNOWN_VERSION in text:  # it has answered before it closed the connection
            return (
                f"the broker at {servers} closed the connection while user {sasl.user!r} authenticated "
                f"({sasl.mechanism}): most likely a wrong user name or password"
            )
        return f"the broker at {servers} closed the connection: does this listener expect TLS or a password?"
    return f"no Kafka broker can be used at {servers}: {describe(error)}"


def explain(settings: KafkaSinkSettings, error: BaseException, topic: str = "") -> str:
    """Returns what an error of an open client means."""
    name = f"topic {topic}" if topic else "a topic"
    if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
        return f"not authorised for {name}: allow {_principal(settings)} to describe and write it"
    if isinstance(error, kafka_errors.ClusterAuthorizationFailedError):
        return (
            f"not authorised for the cluster: allow {_principal(settings)} IdempotentWrite, and Create for new topics"
        )
    if isinstance(error, kafka_errors.MessageSizeTooLargeError | kafka_errors.RecordListTooLargeError):
        return (
            f"a record is larger than {name} or its broker allows: raise max.message.bytes of the topic, or lower "
            "`max_request_bytes`"
        )
    if isinstance(error, kafka_errors.UnknownTopicOrPartitionError):
        return f"there is no {name}: create it, or set `create_topics: true`"
    if isinstance(error, kafka_errors.InvalidReplicationFactorError):
        return f"{name} can't be created: the cluster has too few brokers for `replication_factor`"
    if isinstance(error, kafka_errors.NodeNotReadyError | kafka_errors.KafkaConnectionError):
        return f"no broker is reachable at {', '.join(settings.bootstrap_servers)}: {describe(error)}"
    return f"{name}: {describe(error)}"


def describe(error: BaseException) -> str:
    """Returns the error on one line, without the requests that kafka-python appends."""
    text = str(error).split("failed with response")[0].strip()
    name = type(error).__name__
    if not text:
        return name
    return text[:300] if name in text else f"{name}: {text[:300]}"


def _principal(settings: KafkaSinkSettings) -> str:
    return f"user {settings.sasl.user!r}" if settings.sasl is not None else "this client"


def _tls_detail(text: str) -> str:
    start = text.find("[SSL")
    return text[start:].split(" (_ssl.c")[0][:200] if start >= 0 else "handshake failed"
