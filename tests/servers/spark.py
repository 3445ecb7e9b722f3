"""Real Spark servers, from the PySpark package: a standalone cluster, and a Spark Connect server.

`python -m tests.servers.spark` starts both and says where they are, until it is interrupted.
"""

from __future__ import annotations

import re
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from registry.embedded_postgres import free_port
from tests.servers.jars import JarsMissing, java
from tests.servers.process import ServerProcess

_LOOPBACK = "127.0.0.1"
_START_S = 120.0
_SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_DEPLOY = "org.apache.spark.deploy"


class SparkProcess(ServerProcess):
    """A JVM of Spark and its child processes."""

    def __init__(self, directory: Path, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(name, directory / f"{name}.log")
        self._command = [str(spark_home() / "bin" / command[0]), *command[1:]]
        self._environment = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": str(directory),
            "SPARK_LAUNCHER_OPTS": _SMALL,
            **environment,
        }

    def start_until(self, ready: str) -> None:
        """Waits until the log contains the expected line."""
        java()  # says what to do if there is none
        self.start(self._command, self._environment, lambda: re.search(ready, self.log) is not None, _START_S)


class SparkCluster:
    """A standalone master and its workers, each a process, on loopback."""

    def __init__(self, directory: Path, workers: int = 2, environment: Mapping[str, str] | None = None) -> None:
        port = free_port()
        self.master = f"spark://{_LOOPBACK}:{port}"
        small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _SMALL, **(environment or {})}
        self._master = SparkProcess(
            directory,
            "master",
            ["spark-class", f"{_DEPLOY}.master.Master", "--host", _LOOPBACK, "--port", str(port), "--webui-port", "0"],
            small,
        )
        options = ["--cores", "1", "--memory", "1g", "--host", _LOOPBACK, "--webui-port", "0"]
        self.workers = [
            SparkProcess(
                directory,
                f"worker-{number}",
                ["spark-class", f"{_DEPLOY}.worker.Worker", *options, "-d", str(directory / "work"), self.master],
                small,
            )
            for number in range(workers)
        ]

    def __enter__(self) -> Self:
        self._master.start_until("I have been elected leader")
        for worker in self.workers:
            self.start_worker(worker)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, self._master):
            process.kill()

    def start_worker(self, worker: SparkProcess) -> None:
        worker.start_until("Successfully registered with master")


class SparkConnectServer:
    """Listens on loopback. Another `start` after `kill` uses the same port and has none of the earlier sessions."""

    def __init__(self, directory: Path, master: str = "local[2]", environment: Mapping[str, str] | None = None) -> None:
        port = free_port()
        self.url = f"sc://{_LOOPBACK}:{port}"
        settings = {
            "spark.connect.grpc.binding.address": _LOOPBACK,
            "spark.connect.grpc.binding.port": str(port),
            "spark.ui.enabled": "false",
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": _SMALL,
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
        command = ["spark-submit", "--master", master, "--class", kind, *options, "spark-internal"]
        self.process = SparkProcess(directory, "connect", command, environment or {})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()

    def start(self) -> None:
        self.process.start_until("Spark Connect server started")


def spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsMissing("PySpark brings Spark, and it is not installed: make setup")
    return Path(spec.origin).parent


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        SparkCluster(Path(scratch)) as cluster,
        SparkConnectServer(Path(scratch)) as server,
        suppress(KeyboardInterrupt),
    ):
        print(f"standalone: {cluster.master}\nSpark Connect: {server.url}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
