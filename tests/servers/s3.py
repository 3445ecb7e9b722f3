"""A real server of the S3 protocol over a directory: s3proxy, from 26 jars that are fetched once per user."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from pydantic import SecretStr

from astha.subscribers.context import S3Settings
from registry.embedded_postgres import free_port
from tests.servers.jars import Jar, fetch, java
from tests.servers.process import Server, ServerProcess

_START_S = 90.0
_ACCESS_KEY = "astha"

_LOGGING = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


def _bare(group: str, version: str, *artifacts: str) -> list[Jar]:
    return [Jar(group, artifact, version, transitive=False) for artifact in artifacts]


# What s3proxy's file system needs of its 152 dependencies; the rest is for other clouds.
_JARS = [
    *_bare("org.gaul", "4.1.0", "s3proxy"),
    *_bare("jakarta.servlet", "6.0.0", "jakarta.servlet-api"),
    *_bare("tools.jackson.core", "3.2.2", "jackson-core", "jackson-databind"),
    *_bare("tools.jackson.dataformat", "3.2.2", "jackson-dataformat-xml"),
    *_bare("com.fasterxml.jackson.core", "2.22", "jackson-annotations"),
    *_bare("com.fasterxml.woodstox", "7.2.1", "woodstox-core"),
    *_bare("org.codehaus.woodstox", "4.3.0", "stax2-api"),
    *_bare("com.google.guava", "33.7.1-jre", "guava"),
    *_bare("com.google.guava", "1.0.3", "failureaccess"),
    *_bare("args4j", "2.37", "args4j"),
    *_bare("ch.qos.logback", "1.6.3", "logback-classic", "logback-core"),
    *_bare("org.slf4j", "2.0.18", "slf4j-api"),
    *_bare("io.opentelemetry", "1.65.0", "opentelemetry-api", "opentelemetry-context"),
    *_bare("io.opentelemetry.semconv", "1.43.0", "opentelemetry-semconv"),
    *_bare(
        "software.amazon.awssdk", "2.54.2", "s3", "aws-core", "sdk-core", "utils", "annotations", "http-client-spi",
        "identity-spi", "checksums", "checksums-spi",
    ),
]  # fmt: skip


class S3Server(Server):
    """Listens on loopback, with these keys or its own. Its content survives `kill` and another `start`, on the same
    port.
    """

    def __init__(self, directory: Path, keys: tuple[str, str] | None = None) -> None:
        self._directory = directory
        self._buckets = directory / "buckets"
        self._access, self._secret = keys or (_ACCESS_KEY, secrets.token_urlsafe(16))
        self._port = free_port()
        self._process = ServerProcess("the S3 server", directory / "server.log")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def settings(self) -> S3Settings:
        return S3Settings(
            endpoint=self.endpoint,
            access_key=SecretStr(self._access),
            secret_key=SecretStr(self._secret),
            allow_http=True,
        )

    def create_bucket(self, name: str) -> None:
        """Creates a directory, which the server serves as a bucket."""
        (self._buckets / name).mkdir(parents=True)

    def start(self) -> None:
        self._buckets.mkdir(parents=True, exist_ok=True)
        self._process.start(self._command(java()), {}, self._answers, _START_S)

    def _command(self, java_binary: str) -> list[str]:
        library = fetch("s3proxy", *_JARS)
        properties = self._directory / "s3proxy.properties"
        properties.write_text(
            f"s3proxy.endpoint={self.endpoint}\n"
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={self._access}\n"
            f"s3proxy.credential={self._secret}\n"
            "jclouds.provider=filesystem-nio2\n"
            "jclouds.identity=local\n"
            "jclouds.credential=local\n"
            f"jclouds.filesystem.basedir={self._buckets}\n"
        )
        logging = self._directory / "logback.xml"
        logging.write_text(_LOGGING)
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlogback.configurationFile={logging}"]
        main = ["org.gaul.s3proxy.Main", "--properties", str(properties)]
        return [java_binary, *options, "-cp", f"{library}/*", *main]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1.0):
                return True
        except OSError:
            return False
