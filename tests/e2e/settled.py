"""A lake under test: how a run opens it, and what must hold when its daemon has settled."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from components.lib.lake.iceberg import IcebergTables
from components.lib.storage_manager import StorageManager, StorageSettings
from registry.connect import open_store
from registry.contract import MetadataStore
from tests.integration.astha.processes import Astha, Daemon
from tests.lake import iceberg_tables
from tests.waiting import eventually, eventually_now

SETTLE_S = 240.0


@asynccontextmanager
async def opened_lake(
    url: str, lake: LakeSettings
) -> AsyncIterator[tuple[MetadataStore, StorageManager, IcebergTables]]:
    store = await open_store(url)
    tables = iceberg_tables(url, lake)
    around = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)
    try:
        async with StorageManager(around, StorageSettings(fill_missing=True)) as manager:
            yield store, manager, tables
    finally:
        tables.close()
        await store.close()


def until_updater_is_live(daemon: Daemon) -> None:
    """Waits for it, or for the end of the process."""

    def live() -> bool:
        lines = list(daemon.lines)
        return any(line.get("component") == "iceberg_updater" and "is live" in line["event"] for line in lines)

    eventually_now(lambda: live() or daemon.process.poll() is not None, "a live updater", SETTLE_S)


async def require_equal(astha: Astha, daemon: Daemon, seed: str) -> None:
    """Requires that `astha verify` finds no difference, in storage neither."""
    done = await asyncio.to_thread(_verify, astha)
    trouble = [line for line in daemon.lines if line.get("level") in ("warning", "error", "critical")][-20:]
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}\n{trouble}"
    assert json.loads(done.stdout)["equal"]


def _verify(astha: Astha) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astha.cli", "verify", "--files", "--checksums", "--json", "--timeout", "120"]
    return subprocess.run(
        command, cwd=astha.directory, env=astha.environment, capture_output=True, text=True, check=False,
        timeout=SETTLE_S,
    )  # fmt: skip


async def require_compacted(store: MetadataStore, seed: str) -> None:
    """Requires that no compaction is left running, that some are done and that none failed."""

    async def over() -> bool:
        return not await store.list_compactions(statuses=["running"])

    async def some_done() -> bool:
        return bool(await store.list_compactions(statuses=["done"], limit=1))

    # Writers and kills may have aborted every one of them until now, on a slow machine.
    await eventually(some_done, f"seed {seed}: something is compacted", SETTLE_S)
    await eventually(over, f"seed {seed}: no compaction is left running", SETTLE_S)
    rows = await store.list_compactions(limit=10_000)
    statuses = Counter(row.status for row in rows)
    print(f"compactions: {dict(statuses)}")  # noqa: T201
    assert not statuses["failed"], f"seed {seed}: {[row for row in rows if row.status == 'failed']}"
