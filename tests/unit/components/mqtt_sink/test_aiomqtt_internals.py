"""Canaries: they fail when aiomqtt or paho-mqtt is upgraded, and say which part of `aiomqtt_internals` to look at."""

from __future__ import annotations

import inspect
from hashlib import sha256
from importlib.metadata import version
from typing import Any

import pytest
from aiomqtt import Client
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.properties import Properties

VERSIONS = {"aiomqtt": "2.5", "paho-mqtt": "2."}
HERE = "components/mqtt_sink/aiomqtt_internals.py"

PARTS: dict[str, tuple[str, str, Any]] = {
    # what: (digest of its source, what of ours depends on it, the thing itself)
    "Client._on_connect": ("7864d8930bfb", "observe calls it", Client._on_connect),
    "Client._on_publish": ("fa45dc8b26f8", "observe replaces it", Client._on_publish),
    "Client.publish": ("1e1885f9d00b", "send replaces it", Client.publish),
    "Client.__aenter__": ("4ce04cfce6db", "Link.connect closes the socket if it fails", Client.__aenter__),
    "Client.__aexit__": ("55f5a92b7618", "Link.close", Client.__aexit__),
    "PahoClient.publish": ("5c00cd3dcebc", "send", PahoClient.publish),
    "PahoClient._send_publish": (
        "4edd21dd50f5",
        "send calls `pack`",
        PahoClient._send_publish,
    ),
    "PahoClient._sock_close": ("638e9c4e5a7f", "abort", PahoClient._sock_close),
    "PahoClient._ssl_wrap_socket": (
        "a71513b1452d",
        "tls.py: it leaks",
        PahoClient._ssl_wrap_socket,
    ),
    "Properties.pack": ("e5c3c9f3b95f", "properties.py replaces it", Properties.pack),
}


def digest(part: Any) -> str:
    return sha256(inspect.getsource(part).encode()).hexdigest()[:12]


@pytest.mark.parametrize(("package", "expected"), VERSIONS.items())
def test_the_versions_are_those_that_were_read(package: str, expected: str) -> None:
    assert version(package).startswith(expected), f"read the parts of {HERE} again, then change VERSIONS here"


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_unchanged(name: str) -> None:
    known, ours, part = PARTS[name]
    assert digest(part) == known, f"{name} has changed: check {ours} in {HERE}, then write {digest(part)} here"
