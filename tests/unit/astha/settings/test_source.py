from __future__ import annotations

import pytest

from astha.errors import ConfigError
from astha.settings import load_settings
from astha.settings.source import parse_stream_url


def test_a_kafka_url_has_servers_and_a_topic() -> None:
    found = parse_stream_url("kafka://al%40ice:pass%2Fword@one:9093,two,[::1]:9094/astha.transactions")
    assert found.transport == "kafka"
    assert found.hosts == ["one:9093", "two:9092", "[::1]:9094"]
    assert (found.name, found.user, found.password) == ("astha.transactions", "al@ice", "pass/word")
    assert found.shown == "kafka://one:9093,two:9092,[::1]:9094/astha.transactions"


def test_an_mqtt_url_has_one_server_and_a_prefix() -> None:
    found = parse_stream_url("mqtt://broker/plant/astha/")
    assert (found.servers, found.name, found.user, found.tls) == ((("broker", 1883),), "plant/astha", None, False)
    secure = parse_stream_url("mqtts://broker/astha")
    assert (secure.servers, secure.tls) == ((("broker", 8883),), True)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://host/db", "begins with kafka://, mqtt://"),
        ("kafka://host:9092", "lacks the topic"),
        ("mqtt://host/", "lacks the prefix"),
        ("kafka://:9092/t", "not host:port"),
        ("kafka://host:many/t", "not host:port"),
        ("mqtt://one,two/p", "names one server"),
        ("mqtt://host/a/#", "wildcards"),
        ("kafka://host/t?group=1", "has no parameters"),
    ],
)
def test_a_wrong_url_is_an_error_that_shows_no_secret(url: str, problem: str) -> None:
    scheme, _, rest = url.partition("://")
    with pytest.raises(ConfigError, match=problem) as raised:
        load_settings(flags={"source": {"url": f"{scheme}://user:s3cr3t@{rest}"}})
    assert "s3cr3t" not in str(raised.value)


def test_passwords_are_redacted() -> None:
    flags = {"url": "kafka://alice:in-the-url@host/t", "mqtt": {"user": "bob", "password": "in-the-group"}}
    settings = load_settings(flags={"source": flags})
    assert settings.redactor()("in-the-url in-the-group") == "*** ***"
    assert "in-the" not in repr(settings)


def test_a_client_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigError, match="set both `certificate` and `key`, or neither"):
        load_settings(flags={"source": {"mqtt": {"tls": {"certificate": "client.pem"}}}})


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            {"url": "kafka://alice:word@host/t", "kafka": {"sasl": {"user": "bob", "password": "word"}}},
            "the URL has a user, and source.kafka.sasl is set",
        ),
        ({"url": "mqtt://alice@host/p", "mqtt": {"user": "bob"}}, "the URL has a user, and source.mqtt.user is set"),
        ({"url": "mqtt://host/p", "mqtt": {"tls": {}}}, "source.mqtt.tls needs an mqtts:// URL"),
    ],
)
def test_settings_that_contradict_the_url(source: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_settings(flags={"source": source})


def test_nested_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_SOURCE__KAFKA__TLS__CA", "/etc/ca.pem")
    monkeypatch.setenv("ASTHA_SOURCE__KAFKA__SASL__USER", "alice")
    monkeypatch.setenv("ASTHA_SOURCE__KAFKA__SASL__PASSWORD", "12345")
    kafka = load_settings().source.kafka
    assert kafka.tls is not None
    assert str(kafka.tls.ca) == "/etc/ca.pem"
    assert kafka.sasl is not None
    assert (kafka.sasl.user, kafka.sasl.password.get_secret_value()) == ("alice", "12345")
