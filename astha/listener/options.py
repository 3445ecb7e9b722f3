"""The listener's options, which the daemon sends first."""

from __future__ import annotations

import ssl

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True, tag="options"):
    """The settings that the listener needs; the first frame. It contains paths of keys, not keys."""

    group: str = "server"  # of settings, for messages
    token: str | None = None
    read_token: str | None = None
    open_paths: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()  # names of this daemon, in lower case; "*" is any
    any_address: bool = False  # accept every IP address as a Host, because it listens on more than loopback
    max_connections: int = 512
    max_watchers: int = 256
    max_dashboards: int = 32
    header_timeout_s: float = 10.0
    keepalive_timeout_s: float = 75.0
    busy_timeout_s: float = 60.0  # for a request and its response, streams of events excepted
    buffer_events: int = 10_000
    buffer_bytes: int = 4 * 1024 * 1024
    certificate: str | None = None
    key: str | None = None

    @property
    def token_hint(self) -> str:
        group = self.group
        return f"set {group}.token (ASTHA_{group.upper()}__TOKEN) for the server and for the caller"


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Raises OSError (ssl.SSLError is one) or ValueError if the files are not a certificate and its key."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted: use an unencrypted key that only the daemon's user can read")
