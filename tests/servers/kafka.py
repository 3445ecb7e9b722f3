"""A real Apache Kafka broker in KRaft mode, one node, from jars that are fetched once per user.

`python -m tests.servers.kafka` starts one and prints its address, until it is interrupted.
"""

from __future__ import annotations

import base64
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from registry.embedded_postgres import free_port
from tests import tls
from tests.servers.jars import Jar, fetch, java
from tests.servers.process import NoServer, Server, ServerProcess

_JARS = (
    Jar("org.apache.kafka", "kafka_2.13", "4.3.1"),
    Jar("org.slf4j", "slf4j-simple", "1.7.36", transitive=False),
)
_LOOPBACK = "127.0.0.1"
_START_S = 90.0
_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_API_VERSIONS = b"\x00\x00\x00\x0b\x00\x12\x00\x00\x00\x00\x00\x01\x00\x01x"
"""The smallest request that a broker answers: version 0 of ApiVersions, from a client named x."""

_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    # Without these, a restart after `kill` waits 20 s for the earlier process's session to expire.
    "broker.heartbeat.interval.ms": "100",
    "broker.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": "2097152",
}
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES = "org.apache.kafka.common.security"


class KafkaBroker(Server):
    """Listens on loopback. Its content survives `stop` and `kill`; another `start` uses the same ports.

    With `users` (name -> password) it also has listeners with SASL, without and with TLS, and one with TLS alone; these
    users may do only what access control lists allow, while the plain listener stays open to all. `advertised` adds
    plain listeners by name, each with the address that the broker gives to its clients: that of a proxy.
    """

    def __init__(
        self,
        directory: Path,
        *,
        users: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        advertised: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._users = dict(users or {})
        self._extra = dict(settings or {})
        self._advertised = dict(advertised or {})
        names = ["PLAINTEXT", "CONTROLLER", *(("SASL_PLAINTEXT", "SASL_SSL", "SSL") if users else ())]
        self._ports = {name: free_port() for name in (*names, *self._advertised)}
        self._process = ServerProcess("the Kafka broker", directory / "broker.log")

    @property
    def address(self) -> str:
        """Returns host and port of the listener without encryption and passwords."""
        return self.listener("PLAINTEXT")

    @property
    def port(self) -> int:
        return self._ports["PLAINTEXT"]

    def listener(self, protocol: str) -> str:
        """Returns host and port for a protocol: SASL_PLAINTEXT, SASL_SSL or SSL, if there are users."""
        return f"{_LOOPBACK}:{self._ports[protocol]}"

    def port_of(self, listener: str) -> int:
        return self._ports[listener]

    def start(self) -> None:
        """Call it from the main thread: the kernel ends the broker with the thread that started it."""
        library = fetch("kafka", *_JARS)
        properties = self._directory / "server.properties"
        if not (self._directory / "logs" / "meta.properties").exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            properties.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
            self._format(library, properties)
        options = ["-Xmx256m", *_SMALL, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command = [java(), *options, "-cp", f"{library}/*", "kafka.Kafka", str(properties)]
        self._process.start(command, {}, self.responds, _START_S)

    def responds(self) -> bool:
        try:
            with socket.create_connection((_LOOPBACK, self.port), 1.0) as connection:
                connection.settimeout(2.0)
                connection.sendall(_API_VERSIONS)
                return len(connection.recv(4)) == 4
        except OSError:
            return False

    def _properties(self) -> dict[str, str]:
        listeners = {name: f"{name}://{self.listener(name)}" for name in self._ports}
        plain = {"CONTROLLER", *self._advertised}
        protocols = {name: "PLAINTEXT" if name in plain else name for name in self._ports}
        advertised = {name: self._advertised.get(name, self.listener(name)) for name in self._ports}
        del advertised["CONTROLLER"]
        return {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{self.listener('CONTROLLER')}",
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{value}" for name, value in protocols.items()),
            "log.dirs": str(self._directory / "logs"),
            **(self._security() if self._users else {}),
            **self._extra,
        }

    def _security(self) -> dict[str, str]:
        pair = self._directory / "broker.pem"
        pair.write_text(tls.KEY.read_text() + tls.CERTIFICATE.read_text())
        trusted = self._directory / "clients.pem"
        trusted.write_text(tls.AUTHORITY.read_text() + tls.CLIENT_AUTHORITY.read_text())
        passwords = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        logins = {"PLAIN": f"{_MODULES}.plain.PlainLoginModule required {passwords};"}
        found = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(pair),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
        }
        for listener in ("sasl_plaintext", "sasl_ssl"):
            for mechanism in _MECHANISMS:
                login = logins.get(mechanism, f"{_MODULES}.scram.ScramLoginModule required;")
                found[f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"] = login
        return found

    def _format(self, library: Path, properties: Path) -> None:
        # Begins with a letter: the tool would take an id that begins with a hyphen for an option.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()
        command = [java(), "-Xmx128m", *_SMALL, "-cp", f"{library}/*", "kafka.tools.StorageTool", "format"]
        command += ["-t", cluster, "-c", str(properties)]
        for name, password in self._users.items():
            for mechanism in _MECHANISMS[1:]:
                command += ["--add-scram", f"{mechanism}=[name={name},password={password}]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NoServer(f"could not format the Kafka broker's storage: {(done.stdout + done.stderr)[-2_000:]}")


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        KafkaBroker(Path(scratch)) as broker,
        suppress(KeyboardInterrupt),
    ):
        print(f"Kafka: {broker.address}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
