"""The images' health check, against a server that returns what a daemon returns."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from registry.embedded_postgres import free_port
from tests.deploy.docker.demo_files import DOCKER


class Livez(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[200, 503])
def server(request: pytest.FixtureRequest) -> Iterator[HTTPServer]:
    handler = type("Handler", (Livez,), {"status": request.param})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def check(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(DOCKER / "healthcheck.py"), *arguments],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_the_port_comes_from_the_environment(server: HTTPServer) -> None:
    code, said = check(ASTHA_SERVER__HOST="0.0.0.0", ASTHA_SERVER__PORT=str(server.server_port))  # noqa: S104
    assert (code == 0) == ("200" in said)
    assert said.startswith("/livez returned ")


def test_the_port_comes_from_the_settings_file(server: HTTPServer, tmp_path: Path) -> None:
    config = tmp_path / "astha.yaml"
    config.write_text(f"server: {{port: {server.server_port}}}\nlog: {{level: info}}\n")
    assert "/livez returned " in check(ASTHA_CONFIG=str(config))[1]


def test_the_catalog_has_a_port_of_its_own(server: HTTPServer) -> None:
    code, said = check("catalog", ASTHA_CATALOG__PORT=str(server.server_port), ASTHA_SERVER__PORT=str(free_port()))
    assert (code == 0) == ("200" in said)
    assert said.startswith("/livez returned ")


def test_no_daemon_and_no_settings_file_are_failures(tmp_path: Path) -> None:
    code, said = check(ASTHA_SERVER__PORT=str(free_port()))
    assert (code, said.startswith("no response: ")) == (1, True)
    assert check(ASTHA_CONFIG=str(tmp_path / "missing.yaml"))[0] == 1
