"""Canaries: they fail when a client library is upgraded, and say which part of `astha/brokers` to look at."""

from __future__ import annotations

import inspect
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import pytest
from aiomqtt import Client
from kafka import KafkaProducer
from kafka.cluster import ClusterMetadata
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector
from kafka.producer.sender import Sender
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.properties import Properties

VERSIONS = {"aiomqtt": "2.5", "kafka-python": "3.", "paho-mqtt": "2."}

KAFKA = "astha/brokers/kafka.py"
MQTT = "astha/brokers/mqtt.py"
PARTS: dict[str, tuple[str, str, Any]] = {
    # what: (digest of its source, what of ours depends on it, the thing itself)
    "Client._on_connect": ("7864d8930bfb", f"{MQTT}: observe calls it", Client._on_connect),
    "Client._on_publish": ("fa45dc8b26f8", f"{MQTT}: observe replaces it", Client._on_publish),
    "Client._on_disconnect": ("06c47e2b6a3c", f"{MQTT}: abort", Client._on_disconnect),
    "Client.publish": ("1e1885f9d00b", f"{MQTT}: send replaces it", Client.publish),
    "Client.__aenter__": ("4ce04cfce6db", f"{MQTT}: connect closes the socket if it fails", Client.__aenter__),
    "Client.__aexit__": ("55f5a92b7618", f"{MQTT}: connected, and Link.close of the sink", Client.__aexit__),
    "PahoClient.publish": ("5c00cd3dcebc", f"{MQTT}: send", PahoClient.publish),
    "PahoClient._send_publish": ("4edd21dd50f5", f"{MQTT}: send calls `pack`", PahoClient._send_publish),
    "PahoClient._sock_close": ("638e9c4e5a7f", f"{MQTT}: abort", PahoClient._sock_close),
    "PahoClient._ssl_wrap_socket": ("a71513b1452d", "astha/brokers/tls.py: it leaks", PahoClient._ssl_wrap_socket),
    "Properties.pack": ("e5c3c9f3b95f", "properties.py of the sink replaces it", Properties.pack),
    "KafkaNetClient.__init__": ("9d5a78ad19c3", f"{KAFKA}: open creates it", KafkaNetClient.__init__),
    "KafkaNetClient.close": ("b787785b1881", f"{KAFKA}: open closes it", KafkaNetClient.close),
    "KafkaNetSocket": ("4e6249bf844c", f"{KAFKA}: _ClosingSocket", KafkaNetSocket),
    "NetworkSelector.start": ("cb2f490a67c8", f"{KAFKA}: _FailureLog knows the thread's name", NetworkSelector.start),
    "KafkaProducer.close": ("431699b88f33", f"{KAFKA}: close completes it", KafkaProducer.close),
    "Sender.__init__": ("4d28c2c73cbc", f"{KAFKA}: _FailureLog knows the thread's name", Sender.__init__),
    "Sender.force_close": ("7963a0d23bc9", f"{KAFKA}: close", Sender.force_close),
    "ClusterMetadata.update_metadata": (
        "9e8f4e5ed9d0",
        f"{KAFKA}: may_not_use reads unauthorized_topics",
        ClusterMetadata.update_metadata,
    ),
    "ClusterMetadata.partitions_for_topic": (
        "f4da75f738dc",
        f"{KAFKA}: known_partitions",
        ClusterMetadata.partitions_for_topic,
    ),
}


def digest(part: Any) -> str:
    return sha256(inspect.getsource(part).encode()).hexdigest()[:12]


@pytest.mark.parametrize(("package", "expected"), VERSIONS.items())
def test_the_versions_are_those_that_were_read(package: str, expected: str) -> None:
    assert version(package).startswith(expected), "read the parts below again, then change VERSIONS here"


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_unchanged(name: str) -> None:
    known, ours, part = PARTS[name]
    assert digest(part) == known, f"{name} has changed: check {ours}, then write {digest(part)} here"
