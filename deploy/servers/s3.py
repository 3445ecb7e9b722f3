"""A real server of the S3 protocol over a directory: s3proxy from jars, or versitygw where there is one.

s3proxy is 26 jars and a minute on the first day; versitygw starts faster but takes minutes of two cores to build, so
it is used only if somebody has built it, or if there is no Java.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from astha.subscribers.context import S3Settings
from deploy.servers.jars import Jar, JarsMissing, cache_directory, fetch, java
from deploy.servers.process import NoServer, ServerProcess
from registry.embedded_postgres import free_port

SETTING = "ASTHA_S3_SERVER"
"""Path of a versitygw binary."""

_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
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


class S3Server:
    """On loopback, with keys of its own. What it holds survives `kill` and another `start`, on the same port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._buckets = directory / "buckets"
        self._secret = secrets.token_urlsafe(16)
        self._port = free_port()
        self._process = ServerProcess("the S3 server", directory / "server.log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def settings(self) -> S3Settings:
        return S3Settings(
            endpoint=self.endpoint,
            access_key=SecretStr(_ACCESS_KEY),
            secret_key=SecretStr(self._secret),
            allow_http=True,
        )

    def create_bucket(self, name: str) -> None:
        """Both servers take a directory for a bucket."""
        (self._buckets / name).mkdir(parents=True)

    def start(self) -> None:
        self._buckets.mkdir(parents=True, exist_ok=True)
        self._process.start(*self._command(), self._answers, _START_S)

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def _command(self) -> tuple[Sequence[str], dict[str, str]]:
        gateway = _built_gateway()
        if gateway is None:
            try:
                return self._proxy(java()), {}
            except JarsMissing:
                gateway = _build_gateway()
                if gateway is None:
                    raise
        keys = {"ROOT_ACCESS_KEY": _ACCESS_KEY, "ROOT_SECRET_KEY": self._secret}
        return [str(gateway), "--port", f"127.0.0.1:{self._port}", "posix", str(self._buckets)], keys

    def _proxy(self, java_binary: str) -> list[str]:
        library = fetch("s3proxy", *_JARS)
        properties = self._directory / "s3proxy.properties"
        properties.write_text(
            f"s3proxy.endpoint={self.endpoint}\n"
            "s3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={_ACCESS_KEY}\n"
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


def _built_gateway() -> Path | None:
    named = os.environ.get(SETTING)
    if named:
        if not os.access(named, os.X_OK):
            raise NoServer(f"{SETTING}={named} is not a program: name a versitygw binary, or unset it")
        return Path(named)
    built = cache_directory() / "bin" / "versitygw"
    return built if built.exists() else None


def _build_gateway() -> Path | None:
    go = shutil.which("go")
    if go is None:
        return None
    directory = cache_directory() / "bin"
    print(f"building {_VERSITYGW}: this takes some minutes, once")
    subprocess.run([go, "install", _VERSITYGW], check=True, env={**os.environ, "GOBIN": str(directory)})
    return directory / "versitygw"
