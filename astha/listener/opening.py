"""Builds the options of an HTTP server from its settings, and binds its address."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from astha.errors import AddressTaken, ConfigError
from astha.listener.options import Options, tls_context
from astha.settings.http import HttpSettings

_BACKLOG = 1024
_ADDRESS_TIMEOUT_S = 1.0

_Address: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]  # of getaddrinfo


def http_options(settings: HttpSettings, group: str) -> Options:
    """Raises ConfigError if other machines could reach the server without a token, or if the key is not the
    certificate's. `group` is the name of these settings.
    """
    options = Options(
        group=group,
        token=settings.secret(),
        read_token=settings.read_secret(),
        hosts=_hosts(settings),
        any_address=not settings.loopback,
        max_connections=settings.max_connections,
        header_timeout_s=settings.header_timeout_s,
        keepalive_timeout_s=settings.keepalive_timeout_s,
        certificate=None if settings.tls_certificate_file is None else str(settings.tls_certificate_file.absolute()),
        key=None if settings.tls_key_file is None else str(settings.tls_key_file.absolute()),
    )
    if not settings.requires_login and not settings.loopback:
        raise ConfigError(
            f"{group}.host is {settings.host}, which other machines can reach: {options.token_hint}, "
            "or listen on 127.0.0.1"
        )
    _require_tls(options)
    return options


async def bind(settings: HttpSettings, group: str) -> list[socket.socket]:
    """Waits a moment for the address: a process that was killed may still hold it. Raises ConfigError or
    AddressTaken.
    """
    host, port = settings.host, settings.port
    where, deadline = f"{host}:{port}", time.monotonic() + _ADDRESS_TIMEOUT_S
    while True:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            return _bound_all(found)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"can't listen on {where}: {error.strerror}: correct {group}.host or {group}.port"
                ) from error
            if time.monotonic() > deadline:
                raise AddressTaken(f"{where} is in use by another process: stop it, or set {group}.port") from error
        await asyncio.sleep(0.05)


def _bound_all(found: Sequence[_Address]) -> list[socket.socket]:
    """Binds one socket for each address of the host, all on the port of the first."""
    first = _bound(*found[0])
    sockets = [first]
    for family, kind, protocol, name, address in found[1:]:
        with suppress(OSError):  # "localhost" has an IPv6 address even on machines without IPv6
            sockets.append(_bound(family, kind, protocol, name, (address[0], first.getsockname()[1], *address[2:])))
    return sockets


def _bound(family: int, kind: int, protocol: int, _: str, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _hosts(settings: HttpSettings) -> frozenset[str]:
    names = [settings.host, *settings.allowed_hosts]
    if not settings.loopback:
        names.append(socket.gethostname())
    return frozenset(name.strip("[]").lower() for name in names)


def _require_tls(options: Options) -> None:
    if (options.certificate is None) != (options.key is None):
        group = options.group
        raise ConfigError(f"{group}.tls_certificate_file and {group}.tls_key_file belong together: set both or neither")
    try:
        tls_context(options.certificate, options.key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"can't serve TLS with certificate {options.certificate} and key {options.key}: {error}: use a readable "
            "certificate in PEM, with its chain, and its key"
        ) from error
