"""What the start of a daemon imports: neither the other database's code, nor what only migrations and sinks need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.astha.processes import ROOT

NEVER = {"aiohttp", "alembic", "kafka", "mako", "numpy", "obstore", "pandas", "pyarrow", "pyiceberg", "pyspark"}
ONLY_ON = {
    "postgresql": {"psycopg", "astha.sources.postgres", "registry.stores.postgres"},
    "sqlite": {"aiosqlite", "astha.sources.sqlite", "registry.stores.sqlite"},
}

START = """
import asyncio, json, sys
import astha.cli.run
from astha.clock import SystemLoopClock
from astha.process import assemble
from astha.settings import load_settings

async def start():
    assembled = await assemble(load_settings(), SystemLoopClock())
    await assembled.daemon.leadership.acquire()
    await assembled.daemon.leadership.resign()
    await assembled.stores.close()

asyncio.run(start())
print(json.dumps(sorted(sys.modules)))
"""


def test_the_start_imports_what_it_needs(url: str, tmp_path: Path) -> None:
    (tmp_path / "subscriptions.yaml").write_text("components: {}\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
    given = {"PYTHONPATH": str(ROOT), "ASTHA_REGISTRY": url, "ASTHA_LAKE__WAREHOUSE": f"{tmp_path}/warehouse"}
    ended = subprocess.run(
        [sys.executable, "-c", START],
        cwd=tmp_path, env={**inherited, **given},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    modules = set(json.loads(ended.stdout.splitlines()[-1]))
    own = url.partition(":")[0]
    assert ONLY_ON[own] - modules == set()
    (other,) = ONLY_ON.keys() - {own}
    assert modules & (NEVER | ONLY_ON[other]) == set()
