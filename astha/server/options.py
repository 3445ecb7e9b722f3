"""Builds the listener's options from the settings, and validates them before anything listens."""

from __future__ import annotations

import socket

from astha.errors import ConfigError
from astha.listener.options import TOKEN_HINT, Options, tls_context
from astha.settings import ServerSettings


def listener_options(settings: ServerSettings) -> Options:
    """Raises ConfigError if other machines could reach the server without a token, or if the key is not the
    certificate's.
    """
    token, read_token = settings.secret(), settings.read_secret()
    if token is None and read_token is None and not settings.loopback:
        raise ConfigError(
            f"server.host is {settings.host}, which other machines can reach: {TOKEN_HINT}, or listen on 127.0.0.1"
        )
    options = Options(
        token=token,
        read_token=read_token,
        open_paths=frozenset(settings.open_paths),
        hosts=_hosts(settings),
        any_address=not settings.loopback,
        max_connections=settings.max_connections,
        max_watchers=settings.max_watchers,
        header_timeout_s=settings.header_timeout_s,
        keepalive_timeout_s=settings.keepalive_timeout_s,
        buffer_events=settings.tail_buffer_events,
        buffer_bytes=settings.tail_buffer_bytes,
        certificate=None if settings.tls_certificate_file is None else str(settings.tls_certificate_file.absolute()),
        key=None if settings.tls_key_file is None else str(settings.tls_key_file.absolute()),
    )
    _require_tls(options)
    return options


def _hosts(settings: ServerSettings) -> frozenset[str]:
    names = [settings.host, *settings.allowed_hosts]
    if not settings.loopback:
        names.append(socket.gethostname())
    return frozenset(name.strip("[]").lower() for name in names)


def _require_tls(options: Options) -> None:
    if (options.certificate is None) != (options.key is None):
        raise ConfigError("server.tls_certificate_file and server.tls_key_file belong together: set both or neither")
    try:
        tls_context(options.certificate, options.key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"can't serve TLS with certificate {options.certificate} and key {options.key}: {error}: use a readable "
            "certificate in PEM, with its chain, and its key"
        ) from error
