from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from components.mqtt_sink import create
from components.mqtt_sink.settings import MqttSettings
from tests.integration.components.mqtt_sink.listener import sink_context


def settings(**given: Any) -> MqttSettings:
    return MqttSettings.model_validate({"url": "mqtt://broker", **given})


@pytest.mark.parametrize(
    ("url", "address", "tls"),
    [
        ("mqtt://broker", "broker:1883", False),
        ("mqtts://broker", "broker:8883", True),
        ("mqtt://10.0.0.1:1884/", "10.0.0.1:1884", False),
        ("mqtts://[::1]:9000", "[::1]:9000", True),
    ],
)
def test_an_address(url: str, address: str, tls: bool) -> None:
    found = settings(url=url)
    assert (found.address, found.connection.tls is not None) == (address, tls)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"url": "http://broker"}, "is not mqtt://host:port or mqtts://host:port"),
        ({"url": "mqtt://:1883"}, "is not mqtt://host:port or mqtts://host:port"),
        ({"url": "mqtt://broker:99999"}, "not a URL"),
        ({"url": "mqtt://broker/astha"}, "write topics as `prefix`"),
        ({"url": "mqtt://user:hunter2@broker"}, "write them as `user` and `password`"),
        ({"prefix": "a/+"}, "has a wildcard"),
        ({"prefix": "a/#"}, "has a wildcard"),
        ({"prefix": "a\0"}, "control character"),
        ({"prefix": "/a"}, "has an empty level"),
        ({"prefix": ""}, "has an empty level"),
        ({"prefix": "$SYS"}, "belong to the broker"),
        ({"changes": False, "transactions": False}, "would send nothing"),
        ({"password": "x"}, "`password` without `user`"),
        ({"url": "mqtts://broker", "tls": {"certificate": "a.pem"}}, "set both `certificate` and `key`"),
        ({"tls": {"ca": "a.pem"}}, "`tls` needs an mqtts:// URL"),
        ({"client_id": ""}, "leave it out for a new one"),
        ({"max_in_flight": 0}, "greater than or equal to 1"),
        ({"keepalive_s": 70_000}, "less than or equal to 65535"),
        ({"qos": 2}, "Extra inputs are not permitted"),
        ({"format": "avro"}, "debezium"),
    ],
)
def test_what_does_not_fit_is_explained(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(**given)
    assert reason in str(refused.value)
    assert "hunter2" not in refused.value.errors()[0]["msg"]


def test_the_password_is_masked() -> None:
    context = sink_context()
    sink = create({"url": "mqtt://broker", "user": "device", "password": "hunter2"}, context)
    assert "hunter2" not in context.redactor("the password is hunter2")
    assert sink.subscribed_tables == context.tables
    assert sink.durable
