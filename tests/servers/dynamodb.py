"""DynamoDB Local, from jars that are fetched once per user, with its tables in a directory."""

from __future__ import annotations

import socket
from pathlib import Path

from registry.embedded_postgres import free_port
from tests.servers.jars import Jar, fetch, java
from tests.servers.process import Server, ServerProcess

_START_S = 90.0
_JAR = Jar("software.amazon.dynamodb", "DynamoDBLocal", "3.1.0")


class DynamoServer(Server):
    """Listens on loopback. Its tables survive `kill` and another `start`, on the same port, if it is ``durable``."""

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self._directory = directory
        self._durable = durable
        self._port = free_port()
        self._process = ServerProcess("DynamoDB Local", directory / "server.log")

    @property
    def port(self) -> int:
        return self._port

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def url(self, name: str) -> str:
        """Returns the URL of the registry in the table of this name."""
        return f"dynamodb://local/{name}?endpoint={self.endpoint}"

    def start(self) -> None:
        (self._directory / "tables").mkdir(parents=True, exist_ok=True)
        self._process.start(self._command(java()), {}, self._answers, _START_S)

    def _command(self, java_binary: str) -> list[str]:
        library = fetch("dynamodb-local", _JAR)  # its native library, SQLite, is among the files
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.library.path={library}"]
        main = ["software.amazon.dynamodb.services.local.main.ServerRunner", "-port", str(self._port)]
        where = ["-dbPath", str(self._directory / "tables")] if self._durable else ["-inMemory"]
        return [java_binary, *options, "-cp", f"{library}/*", *main, "-sharedDb", *where, "-disableTelemetry"]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1.0):
                return True
        except OSError:
            return False
