"""Settings of the Kafka sink, and what its errors say."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors as kafka_errors
from pydantic import ValidationError

from components.kafka_sink.errors import explain
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.topic_keys import TopicKeys
from components.kafka_sink.topics import specs


def settings(**values: Any) -> KafkaSinkSettings:
    return KafkaSinkSettings.model_validate({"bootstrap_servers": "one:9092, two:9093", **values})


def test_servers_are_separated_by_commas() -> None:
    assert settings().bootstrap_servers == ("one:9092", "two:9093")
    assert settings(bootstrap_servers=["three:1"]).bootstrap_servers == ("three:1",)


@pytest.mark.parametrize(
    "values",
    [
        {"bootstrap_servers": ""},
        {"bootstrap_servers": "no-port"},
        {"bootstrap_servers": "user:word@host:9092"},
        {"prefix": "a/b"},
        {"prefix": ""},
        {"layout": "rows"},
        {"tls": {"certificate": "c.pem"}},
        {"sasl": {"user": "a"}},
        {"partitions": 0},
        {"unknown": 1},
    ],
    ids=str,
)
def test_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**values)


def test_secrets_are_not_shown() -> None:
    chosen = settings(sasl={"user": "a", "password": "word-of-honour"})
    assert "word-of-honour" not in repr(chosen)
    assert list(chosen.secrets()) == ["word-of-honour"]


def test_topics_of_each_layout() -> None:
    tables = frozenset({"topics", "tables"})
    assert [spec.name for spec in specs(settings(prefix="p"), tables)] == ["p.tables", "p.topics"]
    with_markers = specs(settings(prefix="p", transaction_topic=True), tables)
    assert [(spec.name, spec.single, spec.cleanup) for spec in with_markers][-1] == ("p.transaction", True, "delete")
    (only,) = specs(settings(prefix="p", layout="transactions"), tables)
    assert (only.name, only.partitions, only.single) == ("p.transactions", 1, True)


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        (
            "Bootstrap connection failed: KafkaConnectionError: 111 ECONNREFUSED",
            "nothing listens at one:9092, two:9093",
        ),
        ("KafkaConnectionError: DNS Resolution failure", "can't be resolved"),
        ("socket disconnected", "does this listener expect TLS or a password"),
        ("", "no Kafka broker can be used at one:9092, two:9093: KafkaTimeoutError: Unable to bootstrap"),
    ],
)
def test_causes(logged: str, expected: str) -> None:
    error = kafka_errors.KafkaTimeoutError("Unable to bootstrap")
    assert expected in str(settings().connection.explain(error, [logged]))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kafka_errors.TopicAuthorizationFailedError(), "not authorised for topic t: allow this client"),
        (kafka_errors.ClusterAuthorizationFailedError(), "IdempotentWrite"),
        (kafka_errors.MessageSizeTooLargeError(), "raise max.message.bytes"),
        (kafka_errors.UnknownTopicOrPartitionError(), "there is no topic t"),
        (kafka_errors.InvalidReplicationFactorError(), "too few brokers"),
        (kafka_errors.NodeNotReadyError("1"), "no broker is reachable"),
        (kafka_errors.NotEnoughReplicasError("x failed with response 'long'"), "NotEnoughReplicasError: x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_explanations(error: Exception, expected: str) -> None:
    text = explain(settings(), error, "t")
    assert expected in text
    assert "long" not in text


def test_live_keys() -> None:
    keys = TopicKeys()
    keys.add("a", [b"%04d" % number for number in range(2_500)])
    keys.add("b", [b"0001"])
    keys.remove("a", [b"%04d" % number for number in range(0, 2_500, 2)])
    keys.remove("a", [b"unknown"])
    found = [key for page in keys.pages("a") for key in page]
    assert found == [b"%04d" % number for number in range(1, 2_500, 2)]
    assert list(keys.pages("b")) == [[b"0001"]]
    assert list(keys.pages("c")) == []
    keys.close()
