"""A certificate for loopback, its key and its authority; one for a client; and keys that don't fit."""

from __future__ import annotations

from pathlib import Path

_FILES = Path(__file__).parent / "fixtures" / "tls"

AUTHORITY = _FILES / "ca.pem"
CERTIFICATE = _FILES / "server.pem"
KEY = _FILES / "server.key"
OTHER_KEY = _FILES / "other.key"
ENCRYPTED_KEY = _FILES / "encrypted.key"

CLIENT_AUTHORITY = _FILES / "client_ca.pem"
CLIENT_CERTIFICATE = _FILES / "client.pem"
CLIENT_KEY = _FILES / "client.key"
