"""A real MQTT broker: Eclipse Mosquitto, installed or from its Debian package.

`python -m tests.servers.mosquitto [PORT]` starts one and prints its URL, until it is interrupted.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from registry.embedded_postgres import free_port
from tests.servers.packages import find_program
from tests.servers.process import Server, ServerProcess
from tests.waiting import eventually_now

_LOOPBACK = "127.0.0.1"
_START_S = 30.0
_ITERATIONS = 101
_RELOADING = "Reloading config"
_SETTINGS: Mapping[str, str | int] = {
    "per_listener_settings": "false",
    "persistence": "false",
    "set_tcp_nodelay": "true",
    "max_queued_messages": 0,  # by default, it drops messages for a subscriber that is a thousand behind
    "log_dest": "stderr",
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """`require_certificate`: clients need a certificate that `authority` has signed."""

    authority: Path
    certificate: Path
    key: Path
    require_certificate: bool = False


@dataclass(frozen=True, slots=True)
class MosquittoOptions:
    """`passwords` by user; without any, clients may be anonymous. `acl` are lines of an acl_file, `settings` more
    options of mosquitto.conf, such as ``max_queued_messages``.
    """

    passwords: Mapping[str, str] = field(default_factory=dict)
    acl: Sequence[str] = ()
    tls: TlsFiles | None = None
    settings: Mapping[str, str | int] = field(default_factory=dict)


class Mosquitto(Server):
    """Listens on loopback, and keeps nothing when it ends: sessions and retained messages are gone. Another `start`
    uses the same ports.
    """

    def __init__(self, directory: Path, options: MosquittoOptions | None = None, port: int | None = None) -> None:
        self._directory = directory
        self._options = options or MosquittoOptions()
        self.port = port or free_port()
        self.tls_port = free_port() if self._options.tls else None
        self._process = ServerProcess("Mosquitto", directory / "mosquitto.log")

    @property
    def url(self) -> str:
        return f"mqtt://{_LOOPBACK}:{self.port}"

    @property
    def tls_url(self) -> str:
        assert self.tls_port is not None, "started without options.tls"
        return f"mqtts://{_LOOPBACK}:{self.tls_port}"

    def start(self) -> None:
        program = find_program("mosquitto", "mosquitto")
        self._directory.mkdir(parents=True, exist_ok=True)
        configuration = self._directory / "mosquitto.conf"
        configuration.write_text("".join(f"{line}\n" for line in self._configuration()))
        command = [str(program.path), "-c", str(configuration)]
        self._process.start(command, program.environment, self._accepts, _START_S)

    def configure(self, **settings: str | int) -> None:
        """Changes options, for the next `start` or `reload`."""
        self._options = replace(self._options, settings={**self._options.settings, **settings})

    def allow(self, acl: Sequence[str]) -> None:
        """Replaces the access control list, for the next `start` or `reload`."""
        self._options = replace(self._options, acl=acl)

    def reload(self) -> None:
        """Returns when the broker that runs has read its options again. It has one thread: once it accepts another
        connection, it has.
        """
        (self._directory / "mosquitto.conf").write_text("".join(f"{line}\n" for line in self._configuration()))
        reloads = self.log.count(_RELOADING)
        os.kill(self.pid, signal.SIGHUP)
        eventually_now(lambda: self.log.count(_RELOADING) > reloads, "a reloaded configuration")
        eventually_now(self._accepts, "a broker that accepts connections")

    def _configuration(self) -> list[str]:
        options = self._options
        lines = [f"{name} {value}" for name, value in {**_SETTINGS, **options.settings}.items()]
        if os.geteuid() == 0:
            lines.append("user root")  # otherwise it becomes a user who cannot read these files
        lines.append(f"allow_anonymous {str(not options.passwords).lower()}")
        if options.passwords:
            content = "".join(f"{user}:{_hashed(password)}\n" for user, password in options.passwords.items())
            lines.append(f"password_file {self._file('passwords', content)}")
        if options.acl:
            lines.append(f"acl_file {self._file('acl', ''.join(f'{line}{os.linesep}' for line in options.acl))}")
        lines.append(f"listener {self.port} {_LOOPBACK}")
        if options.tls is not None:
            lines.append(f"listener {self.tls_port} {_LOOPBACK}")
            lines.append(f"cafile {options.tls.authority}")
            lines.append(f"certfile {options.tls.certificate}")
            lines.append(f"keyfile {options.tls.key}")
            lines.append(f"require_certificate {str(options.tls.require_certificate).lower()}")
        return lines

    def _file(self, name: str, content: str) -> Path:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_text(content)
        return path

    def _accepts(self) -> bool:
        ports = [self.port] if self.tls_port is None else [self.port, self.tls_port]
        for port in ports:
            try:
                socket.create_connection((_LOOPBACK, port), 1.0).close()
            except OSError:
                return False
        return True


def _hashed(password: str) -> str:
    """Returns the password as mosquitto_passwd writes it: PBKDF2 with SHA-512."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else None
    with (
        tempfile.TemporaryDirectory() as scratch,
        Mosquitto(Path(scratch), port=port) as broker,
        suppress(KeyboardInterrupt),
    ):
        print(broker.url, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
