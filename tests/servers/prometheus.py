"""A real Prometheus and a real node_exporter, installed or from their Debian packages."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from registry.embedded_postgres import free_port
from tests.servers.packages import find_program
from tests.servers.process import Server, ServerProcess

_LOOPBACK = "127.0.0.1"
_START_S = 60.0
_ANSWER_S = 30.0


def fetch_json(address: str, path: str, token: str | None = None) -> Any:
    return json.loads(fetch(address, path, token))


def fetch(address: str, path: str, token: str | None = None) -> str:
    """Returns the body of a response; fails unless its status is 200."""
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_S)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        body = response.read().decode()
    finally:
        connection.close()
    assert response.status == 200, body
    return body


class HttpServer(Server):
    """Is ready when `ready_path` responds."""

    ready_path = "/"

    def __init__(self, program: str, package: str, directory: Path) -> None:
        self.address = f"{_LOOPBACK}:{free_port()}"
        self._program, self._package = program, package
        self._process = ServerProcess(program, directory / f"{program}.log")

    def arguments(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        program = find_program(self._program, self._package)
        command = [str(program.path), f"--web.listen-address={self.address}", "--log.level=warn", *self.arguments()]
        self._process.start(command, program.environment, self._responds, _START_S)

    def _responds(self) -> bool:
        with suppress(OSError, http.client.HTTPException, AssertionError):
            fetch(self.address, self.ready_path)
            return True
        return False


class NodeExporter(HttpServer):
    """With the textfile collector, which reads `directory`/*.prom, and file systems of all kinds."""

    def __init__(self, directory: Path) -> None:
        super().__init__("prometheus-node-exporter", "prometheus-node-exporter", directory)
        self._directory = directory

    def arguments(self) -> list[str]:
        collectors = ["--collector.disable-defaults", "--collector.filesystem", "--collector.textfile"]
        everything = "--collector.filesystem.fs-types-exclude=^$"
        return [*collectors, everything, f"--collector.textfile.directory={self._directory}"]


class Prometheus(HttpServer):
    """Scrapes and evaluates every second. `jobs` are the addresses of targets by the name of their job."""

    ready_path = "/-/ready"

    def __init__(self, directory: Path, jobs: Mapping[str, Sequence[str]], rules: Sequence[Path]) -> None:
        super().__init__("prometheus", "prometheus", directory)
        self._directory = directory
        scrapes = [{"job_name": job, "static_configs": [{"targets": list(each)}]} for job, each in jobs.items()]
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": scrapes,
        }
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(configuration))

    def arguments(self) -> list[str]:
        return [
            f"--config.file={self._directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
        ]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("/api/v1/query", query=expression)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        return fetch_json(self.address, f"{path}?{urlencode(parameters)}")["data"]
