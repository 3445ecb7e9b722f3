"""What a daemon logs at debug level while a real Spark session starts, and which variables the JVM gets."""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.integration.astha.processes import Astha
from tests.waiting import eventually_now

pytestmark = pytest.mark.slow

DEADLINE_S = 180.0

COMPONENT = """
import asyncio, logging, pathlib
from astha.subscribers import Component, handles
from components.compactor.spark.executor import open_executor
from components.compactor.settings import CompactorSettings
from components.lib.spark import classic
from registry.models import Topic

here = pathlib.Path(__file__).parent
connect = classic.ClassicSession._connect

def keep_token(session, port, secret):
    (here / "token").write_text(secret)
    return connect(session, port, secret)

classic.ClassicSession._connect = keep_token

class Holder(Component):
    durable = False

    def __init__(self, settings, context):
        super().__init__()
        context.redact("given-by-the-component")
        chosen = CompactorSettings.model_validate(settings)
        self._executor = open_executor(chosen.spark, context.lake, context.redactor)

    @handles(Topic)
    async def topic(self, event):
        pass

    async def on_refresh(self, snapshot):
        self._task = self._task if hasattr(self, "_task") else asyncio.create_task(self._start())

    async def _start(self):
        session = await self._executor.start()
        logging.getLogger("acme").debug("token %s, given-by-the-component", (here / "token").read_text())
        session.context.setLocalProperty("a.property", "sent through the gateway")
        (here / "pid").write_text(str(session.pid))

    async def stop(self):
        await self._executor.close()

def create(settings, context):
    return Holder(settings, context)
"""

SUBSCRIPTIONS = """
components:
  holder:
    use: acme_holder:create
    tables: [topics]
    settings:
      spark: {memory: 512m, options: {spark.acme.password: of-an-option, spark.acme.url: "jdbc://u:in-a-url@h/d"}}
"""

SECRETS = ("of-an-option", "in-a-url", "given-by-the-component", "a-token-of-some-length", "of-another-program")


def test_a_session_that_starts_at_debug_level_shows_and_passes_no_secret(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "acme_holder.py").write_text(COMPONENT)
    (tmp_path / "subscriptions.yaml").write_text(SUBSCRIPTIONS)
    environment = {"ASTHA_SERVER__TOKEN": "a-token-of-some-length", "ACME_TOKEN": "of-another-program"}
    daemon = Astha(tmp_path, sqlite_url, {**environment, "ASTHA_LOG__LEVEL": "debug"}).run()
    try:
        pid = tmp_path / "pid"
        eventually_now(lambda: pid.exists() and pid.read_text() != "", "a session", DEADLINE_S)
        jvm = psutil.Process(int(pid.read_text()))
        passed = jvm.environ()
        for process in jvm.children(recursive=True):
            with suppress(psutil.Error):  # one that has just ended
                passed |= process.environ()
        assert "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE" in passed or "PYTHONHASHSEED" in passed  # a worker's
        work_dir = Path(jvm.environ()["SPARK_LOCAL_DIRS"])
        assert stat.S_IMODE(work_dir.stat().st_mode) == 0o700
        token = (tmp_path / "token").read_text()
        assert len(token) > 30
        assert daemon.logged("token ***, ***")["level"] == "debug"
    finally:
        daemon.close()
    text = json.dumps(daemon.lines)
    assert "spark session started" in text
    assert not [line for line in daemon.lines if str(line.get("logger", "")).startswith("py4j")]
    assert "sent through the gateway" not in text
    for secret in (token, *SECRETS):
        assert secret not in text
        assert secret not in json.dumps(passed)
    assert not [name for name in passed if name.startswith("ASTHA_")]
    assert "ACME_TOKEN" not in passed
