"""Daemons as processes, with a component that only the tests use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from sqlalchemy import text

from astha.client import Client, Refused
from registry.engines import StoreSettings, parse_url, sync_engine
from tests.waiting import eventually_now

ROOT = Path(__file__).parents[3]
TOKEN = "a-token-of-some-length"
DEADLINE_S = 60.0

AUDIT = """
import json, os, pathlib
from astha.events import Event
from astha.subscribers import Component, handles
from registry.contract import ConsistentRead
from registry.models import Topic

class Audit(Component):
    durable = True

    def __init__(self, path):
        super().__init__()
        self._path = path

    @handles(Topic)
    async def topic(self, event: Event[Topic]) -> None:
        self._write(str(event.operation), event.data.name)

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        names = [row.name async for page in snapshot.rows(Topic) for row in page]
        self._write("REFRESH", ",".join(sorted(names)))

    def _write(self, what, name):
        with open(self._path, "a") as file:
            file.write(f"{os.getpid()} {what} {name}\\n")

def create(settings, context):
    return Audit(settings["path"])
"""


Finished: TypeAlias = subprocess.CompletedProcess[str]


class Astha:
    """One way to call the command: in a directory, with an environment."""

    def __init__(
        self, directory: Path, url: str, environment: Mapping[str, str], program: Sequence[str] = ("astha.cli",)
    ) -> None:
        """``program`` is the module that is run as the command, and its first arguments."""
        self.directory, self.url = directory, url
        self.program = [sys.executable, "-m", *program]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
        self.environment = {
            **inherited,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{directory}",
            "ASTHA_REGISTRY": url,
            "ASTHA_SERVER__PORT": "0",
            "ASTHA_LOG__FORMAT": "json",
            "RUNTIME_DIRECTORY": f"{directory}.run",  # for the leader's lock, beside what a test looks at
            **({} if url.startswith("sqlite") else {"ASTHA_LAKE__WAREHOUSE": f"{directory}/warehouse"}),
            **environment,
        }
        self.started: list[Daemon] = []

    def __call__(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.program, *arguments],
            cwd=self.directory, env={**self.environment, **(environment or {})},
            capture_output=True, text=True, check=False, timeout=DEADLINE_S,
        )  # fmt: skip

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Daemon:
        process = subprocess.Popen(
            [*self.program, "run", *arguments],
            cwd=self.directory, env={**self.environment, **(environment or {})},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        daemon = Daemon(process)
        self.started.append(daemon)
        return daemon

    def audited(self) -> list[str]:
        path = self.directory / "audit.log"
        return path.read_text().splitlines() if path.exists() else []


class Daemon:
    """A running `astha run`, and the lines that it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for said in self.process.stderr:
            try:
                line = json.loads(said)
            except ValueError:
                line = {"event": said.rstrip()}
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def logged(self, event: str) -> dict[str, Any]:
        """Waits for the first line with this event."""

        def found() -> dict[str, Any] | None:
            return next((line for line in self.lines if event in line["event"]), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._over, DEADLINE_S)
            line = found()
        assert line is not None, f"{event!r} was not logged: {self.lines}"
        return line

    @property
    def url(self) -> str:
        return str(self.logged("listening")["url"])

    def client(self, token: str | None = None) -> Client:
        return Client(self.url, token)

    def until_ready(self) -> None:
        def ready() -> bool:
            with suppress(Refused):
                self.client().get("/readyz")
                return True
            return False

        eventually_now(ready, "ready", DEADLINE_S)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def postgres_registry(postgres_url: str) -> Iterator[str]:
    """A migrated one; the daemon's slot goes with it."""
    yield postgres_url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        eventually_now(lambda: drop_slots(connection), "the slot is free")


def drop_slots(connection: psycopg.Connection[Any]) -> bool:
    with suppress(psycopg.errors.ObjectInUse):
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )
        return True
    return False


@pytest.fixture
def astha(postgres_registry: str, tmp_path: Path) -> Iterator[Astha]:
    with prepared(postgres_registry, tmp_path) as command:
        yield command


@contextmanager
def prepared(registry: str, tmp_path: Path) -> Iterator[Astha]:
    """With one component, `audit`, which records its events, a token, and a short lease."""
    (tmp_path / "acme_audit.py").write_text(AUDIT)
    (tmp_path / "subscriptions.yaml").write_text(
        "components:\n"
        "  audit:\n"
        "    use: acme_audit:create\n"
        "    tables: [topics]\n"
        f"    settings: {{path: {tmp_path}/audit.log}}\n"
    )
    environment = {
        "ASTHA_SERVER__TOKEN": TOKEN,
        "ASTHA_LEASE__TTL_S": "2",
        "ASTHA_SOURCE__STATUS_INTERVAL_S": "0.2",
    }
    command = Astha(tmp_path, registry, environment)
    try:
        yield command
    finally:
        for daemon in command.started:
            daemon.close()


def add_topic(url: str, name: str) -> None:
    """Writes from outside the daemon."""
    engine = sync_engine(parse_url(url), StoreSettings())
    with engine.connect() as connection:
        columns = "name, partition_count, config, created_at, updated_at"
        connection.execute(text(f"INSERT INTO topics ({columns}) VALUES (:name, 1, '{{}}', 1, 1)"), {"name": name})
    engine.dispose()
