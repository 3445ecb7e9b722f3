"""TLS, passwords and authorisation, and what the sink says when they are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from astha.subscribers import LakeTable, Retry
from astha.testing import make_row
from components.kafka_sink.errors import BrokerUnusable, SendFailed, TopicUnusable
from components.kafka_sink.subscriber import KafkaSink
from tests import tls
from tests.fixtures.kafka import KAFKA_PASSWORD, KAFKA_USER
from tests.integration.components.kafka_sink.harness import Harness
from tests.servers.kafka import KafkaBroker
from tests.waiting import eventually

WRONG = "not-the-password"


def sasl(mechanism: str, password: str = KAFKA_PASSWORD) -> dict[str, Any]:
    return {"sasl": {"mechanism": mechanism, "user": KAFKA_USER, "password": password}}


@pytest.fixture
def allowed(secure_kafka: KafkaBroker, topic_prefix: str) -> Iterator[str]:
    """Allows the users everything for the topics of this prefix, and returns it."""
    allow(secure_kafka, topic_prefix, ACLOperation.ALL)
    yield topic_prefix
    forbid(secure_kafka, topic_prefix)


def allow(broker: KafkaBroker, prefix: str, operation: ACLOperation) -> None:
    with KafkaAdminClient(bootstrap_servers=broker.address) as admin:
        pattern = ResourcePattern(ResourceType.TOPIC, prefix, ACLResourcePatternType.PREFIXED)
        for user in (KAFKA_USER, "CN=device"):
            admin.create_acls([ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, pattern)])


def forbid(broker: KafkaBroker, prefix: str, operation: ACLOperation = ACLOperation.ANY) -> None:
    """Removes what is allowed: that operation, or every one."""
    with KafkaAdminClient(bootstrap_servers=broker.address) as admin:
        pattern = ResourcePatternFilter(ResourceType.TOPIC, prefix, ACLResourcePatternType.PREFIXED)
        admin.delete_acls([ACLFilter(None, None, operation, ACLPermissionType.ANY, pattern)])


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("encrypted", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_a_user_with_a_password(secure_kafka: KafkaBroker, allowed: str, mechanism: str, encrypted: bool) -> None:
    harness = Harness(secure_kafka.listener("SASL_SSL" if encrypted else "SASL_PLAINTEXT"), allowed)
    secure: dict[str, Any] = {"tls": {"ca": str(tls.AUTHORITY)}} if encrypted else {}
    async with harness.started(**sasl(mechanism), **secure) as sink:
        await harness.refresh(sink)
        await harness.commit(sink, make_row(LakeTable, id=1))
        assert await sink.on_health()
    assert harness.in_topics(secure_kafka) == harness.in_registry()


async def test_a_client_certificate(secure_kafka: KafkaBroker, allowed: str) -> None:
    harness = Harness(secure_kafka.listener("SSL"), allowed)
    pair = {"certificate": str(tls.CLIENT_CERTIFICATE), "key": str(tls.CLIENT_KEY)}
    async with harness.started(tls={"ca": str(tls.AUTHORITY), **pair}) as sink:
        await harness.commit(sink, make_row(LakeTable, id=1))
    assert harness.in_topics(secure_kafka) == harness.in_registry()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_wrong_password_is_named_and_not_shown(
    secure_kafka: KafkaBroker, topic_prefix: str, mechanism: str
) -> None:
    message = await refusal(
        secure_kafka, topic_prefix, "SASL_SSL", tls={"ca": str(tls.AUTHORITY)}, **sasl(mechanism, WRONG)
    )
    assert f"user {KAFKA_USER!r}" in message
    assert "wrong user name or password" in message
    assert WRONG not in message


async def refusal(broker: KafkaBroker, prefix: str, listener: str, **settings: Any) -> str:
    sink = Harness(broker.listener(listener), prefix).sink(connect_timeout_s=2.0, **settings)
    try:
        with pytest.raises(BrokerUnusable) as raised:
            await sink.start()
        return str(raised.value)
    finally:
        await sink.stop()


async def test_an_untrusted_certificate(secure_kafka: KafkaBroker, topic_prefix: str) -> None:
    message = await refusal(secure_kafka, topic_prefix, "SASL_SSL", tls={}, **sasl("SCRAM-SHA-256"))
    assert "is not trusted" in message
    assert "tls.ca" in message


async def test_a_listener_without_tls(secure_kafka: KafkaBroker, topic_prefix: str) -> None:
    message = await refusal(secure_kafka, topic_prefix, "PLAINTEXT", tls={"ca": str(tls.AUTHORITY)})
    assert "does this listener use TLS" in message


async def test_a_listener_with_tls_and_a_sink_without(secure_kafka: KafkaBroker, topic_prefix: str) -> None:
    message = await refusal(secure_kafka, topic_prefix, "SSL")
    assert "does this listener expect TLS or a password" in message


async def test_a_missing_client_certificate(secure_kafka: KafkaBroker, topic_prefix: str) -> None:
    message = await refusal(secure_kafka, topic_prefix, "SSL", tls={"ca": str(tls.AUTHORITY)})
    assert "accept the client certificate" in message


async def test_files_that_cannot_be_read(secure_kafka: KafkaBroker, topic_prefix: str) -> None:
    message = await refusal(secure_kafka, topic_prefix, "SSL", tls={"ca": "/no/such/file.pem"})
    assert "`tls.ca` /no/such/file.pem can't be read" in message
    encrypted = {"ca": str(tls.AUTHORITY), "certificate": str(tls.CERTIFICATE), "key": str(tls.ENCRYPTED_KEY)}
    message = await refusal(secure_kafka, topic_prefix, "SSL", tls=encrypted)
    assert "`tls.key_password`" in message


async def test_a_user_without_rights(secure_kafka: KafkaBroker, topic_prefix: str) -> None:
    sink = Harness(secure_kafka.listener("SASL_PLAINTEXT"), topic_prefix).sink(**sasl("SCRAM-SHA-256"))
    with pytest.raises(TopicUnusable, match=rf"not authorised for topic .*: allow user '{KAFKA_USER}'"):
        await sink.start()
    await sink.stop()


async def test_rights_that_are_taken_away(secure_kafka: KafkaBroker, allowed: str) -> None:
    harness = Harness(secure_kafka.listener("SASL_PLAINTEXT"), allowed)
    async with harness.started(**sasl("SCRAM-SHA-256")) as sink:
        await harness.commit(sink, make_row(LakeTable, id=1))
        forbid(secure_kafka, allowed)
        with pytest.raises(SendFailed, match="not authorised for topic"):
            await harness.commit(sink, make_row(LakeTable, id=2))
        with pytest.raises(TopicUnusable, match="not authorised for topic"):
            await sink.on_health()
        allow(secure_kafka, allowed, ACLOperation.ALL)
        await eventually(lambda: _delivered(harness, sink, make_row(LakeTable, id=3)), "rights that are given back")
        await eventually(lambda: _healthy(sink), "a healthy sink")
        await harness.refresh(sink)  # the lane does, because the circuit was open
    assert harness.in_topics(secure_kafka) == harness.in_registry()


async def _delivered(harness: Harness, sink: KafkaSink, row: LakeTable) -> bool:
    try:
        await harness.commit(sink, row)
    except Retry:
        return False
    return True


async def _healthy(sink: KafkaSink) -> bool:
    try:
        return await sink.on_health()
    except Retry:
        return False


async def test_heartbeats_that_may_not_be_written_are_a_problem_of_the_sink(
    secure_kafka: KafkaBroker, allowed: str
) -> None:
    """With an idle registry no delivery fails, and the health check needs only the right to describe the topic."""
    harness = Harness(secure_kafka.listener("SASL_PLAINTEXT"), allowed)
    async with harness.started(layout="transactions", heartbeat_s=0.02, **sasl("SCRAM-SHA-256")) as sink:
        await harness.commit(sink, make_row(LakeTable, id=1))
        await eventually(lambda: _heartbeats(sink) > 0, "a heartbeat")
        assert not list(sink.problems())
        allow(secure_kafka, allowed, ACLOperation.DESCRIBE)
        forbid(secure_kafka, allowed, ACLOperation.ALL)
        await eventually(lambda: bool(list(sink.problems())), "a problem")
        (problem,) = sink.problems()
        assert problem.subject == "heartbeats for followers"
        assert problem.reason.startswith(f"not authorised for topic {allowed}.transactions: allow user '{KAFKA_USER}'")
        assert await sink.on_health()
        allow(secure_kafka, allowed, ACLOperation.ALL)
        failed_at = _heartbeats(sink)
        await eventually(lambda: not list(sink.problems()), "heartbeats again")
        assert _heartbeats(sink) > failed_at


def _heartbeats(sink: KafkaSink) -> float:
    return next(metric.value for metric in sink.metrics() if metric.name == "heartbeats")


def test_secrets_are_masked() -> None:
    harness = Harness("127.0.0.1:9", "x")
    sink = harness.sink(**sasl("PLAIN", "very-secret-word"))
    assert "very-secret-word" not in sink._context.redactor("password very-secret-word")
