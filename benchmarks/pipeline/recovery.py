"""How long no daemon delivers after a kill -9: a restart at once, and a standby on the same machine, on both databases.

All daemons are `astha run` from scratch, so the start of Python is included. Commits go on all the time.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median

from benchmarks.pipeline.first_event import FILE
from benchmarks.processes import deployed_environment
from benchmarks.registries import SERVER, new_registry
from benchmarks.report import Report
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import SegmentDraft
from registry.migrate import migrate

_SUBSCRIPTIONS = "components: {first_event: {use: 'benchmarks.pipeline.first_event:create', tables: [segments]}}\n"
_COMMIT_EVERY_S = 0.02
_LIMIT_S = 60.0


async def recovery_figures(report: Report) -> None:
    rounds = report.pick(5, 1)
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(settings=SERVER) as server:
        sqlite = f"sqlite:///{name}/registry.db"
        await asyncio.to_thread(migrate, sqlite)
        postgres, store = await new_registry(server, "recovered")
        await store.close()
        for database, url in (("postgresql", postgres), ("sqlite", sqlite)):
            restarts, takeovers = [], []
            for number in range(rounds):
                directory = Path(name) / f"{database}{number}"
                directory.mkdir()
                restarts.append(await _restarted(url, directory))
                takeovers.append(await _taken_over(url, directory))
            report.add(
                f"recovery_s_{database}",
                median(restarts),
                f"kill -9, `astha run` again at once, to its first event, Python's start included; {_all(restarts)}",
                at_most=1.5,
            )
            report.add(
                f"takeover_s_{database}",
                median(takeovers),
                f"kill -9 to the first event of a standby on the same machine; {_all(takeovers)}",
                at_most=0.5,
            )


def _all(seconds: list[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in seconds)


async def _restarted(url: str, directory: Path) -> float:
    async with _commits(url), _daemon(url, directory / "first") as first:
        await first.delivers()
        killed = await first.kill()
        async with _daemon(url, directory / "second") as second:
            return await second.delivers() - killed


async def _taken_over(url: str, directory: Path) -> float:
    async with _commits(url), _daemon(url, directory / "leader") as leader:
        await leader.delivers()
        async with _daemon(url, directory / "standby") as standby:
            await standby.stands_by()
            killed = await leader.kill()
            return await standby.delivers() - killed


@asynccontextmanager
async def _commits(url: str) -> AsyncIterator[None]:
    store = await open_store(url)
    topic = f"t{time.time_ns()}"
    await store.create_topic(topic, 1)
    writing = asyncio.create_task(_commit(store, topic))
    try:
        yield
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await store.close()


async def _commit(store: MetadataStore, topic: str) -> None:
    number = 0
    while True:
        await store.add_segment(SegmentDraft(topic, 0, number, number, 1, 1, "bucket", f"{topic}/{number}"))
        number += 1
        await asyncio.sleep(_COMMIT_EVERY_S)


class _Daemon:
    def __init__(self, process: asyncio.subprocess.Process, events: Path, log: Path) -> None:
        self._process = process
        self._events = events
        self._log = log

    async def delivers(self) -> float:
        """Returns the time of its first event."""
        await self._until(lambda: self._events.exists() and "\n" in self._events.read_text())
        return float(self._events.read_text().split("\n", 1)[0])

    async def stands_by(self) -> None:
        await self._until(lambda: "standing by" in self._log.read_text())

    async def kill(self) -> float:
        self._process.kill()
        killed = time.time()
        await self._process.wait()
        return killed

    async def _until(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + _LIMIT_S
        while not condition():
            if time.monotonic() > give_up or self._process.returncode is not None:
                raise SystemExit(f"the daemon has not got so far: {self._log.read_text()[-2000:]}")
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _daemon(url: str, events: Path) -> AsyncIterator[_Daemon]:
    log = events.with_suffix(".log")
    subscriptions = events.with_suffix(".yaml")
    subscriptions.write_text(_SUBSCRIPTIONS)
    settings = {"ASTHA_REGISTRY": url, "ASTHA_SUBSCRIPTIONS": str(subscriptions), "ASTHA_SERVER__PORT": "0"}
    warehouse = str(events.parent.with_name("warehouse"))  # of all daemons of a registry; no component writes there
    environment = deployed_environment(**settings, **{FILE: str(events), "ASTHA_LAKE__WAREHOUSE": warehouse})
    with log.open("w") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "astha.cli", "run", env=environment, stdout=output, stderr=output
        )
        try:
            yield _Daemon(process, events, log)
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
