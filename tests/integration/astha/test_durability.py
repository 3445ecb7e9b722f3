"""A component says whether its state outlives the process; the daemon keeps to it after kill -9, on both databases."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from registry.connect import open_store
from registry.contract import MetadataStore
from tests.integration.astha.processes import Astha, Daemon, drop_slots
from tests.waiting import eventually, eventually_now

pytestmark = pytest.mark.slow

COMPONENTS = """
import os
from astha.subscribers import Component, Topic, handles

class Journal(Component):
    def __init__(self, path):
        self._path = path

    async def start(self):
        self._write("start")

    @handles(Topic)
    async def topic(self, event):
        self._write(f"{event.operation} {event.data.name} {event.position}")

    async def on_refresh(self, snapshot):
        names = [row.name async for page in snapshot.rows(Topic) for row in page]
        self._write(f"refresh {','.join(sorted(names))}")

    def _write(self, call):
        with open(self._path, "a") as file:
            file.write(f"{os.getpid()} {call}\\n")

class InMemory(Journal):
    durable = False

class Durable(Journal):
    durable = True

def in_memory(settings, context):
    return InMemory(settings["path"])

def durable(settings, context):
    return Durable(settings["path"])
"""

SUBSCRIPTIONS = """
components:
  in_memory: {{use: "acme_journal:in_memory", tables: [topics], settings: {{path: {directory}/in_memory.log}}}}
  durable: {{use: "acme_journal:durable", tables: [topics], settings: {{path: {directory}/durable.log}}}}
"""


@pytest.fixture
def astha(url: str, tmp_path: Path) -> Iterator[Astha]:
    (tmp_path / "acme_journal.py").write_text(COMPONENTS)
    (tmp_path / "subscriptions.yaml").write_text(SUBSCRIPTIONS.format(directory=tmp_path))
    command = Astha(tmp_path, url, {"ASTHA_LEASE__TTL_S": "2", "ASTHA_SOURCE__STATUS_INTERVAL_S": "0.2"})
    yield command
    for daemon in command.started:
        daemon.close()
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            eventually_now(lambda: drop_slots(connection), "the slot is free")


def calls(astha: Astha, component: str, daemon: Daemon) -> list[str]:
    """Returns the calls of this process, without positions."""
    return [call.rsplit(" ", 1)[0] if call.startswith("INSERT") else call for call in _raw(astha, component, daemon)]


def _raw(astha: Astha, component: str, daemon: Daemon) -> list[str]:
    path = astha.directory / f"{component}.log"
    lines = path.read_text().splitlines() if path.exists() else []
    pid = f"{daemon.process.pid} "
    return [line.removeprefix(pid) for line in lines if line.startswith(pid)]


async def write(store: MetadataStore, *names: str) -> None:
    for name in names:
        await store.create_topic(name, 1)


async def acknowledged(astha: Astha, store: MetadataStore, daemon: Daemon, last: str) -> None:
    """Waits until both components have the topic and its position is in the ledger."""

    async def recorded() -> bool:
        ledger = {entry.component: entry for entry in await store.read_ledger()}
        for component in ("in_memory", "durable"):
            delivered = [call.split() for call in _raw(astha, component, daemon) if call.startswith(f"INSERT {last} ")]
            entry = ledger.get(component)
            if not delivered or entry is None or entry.refresh_owed or (entry.position or 0) < int(delivered[0][2]):
                return False
        return True

    await eventually(recorded, f"{last} delivered and acknowledged", 60.0)


async def refreshed(astha: Astha, daemon: Daemon, names: str) -> None:
    await eventually(lambda: f"refresh {names}" in calls(astha, "in_memory", daemon), "the refresh", 60.0)


async def test_after_kill_9_memory_is_refreshed_once_and_durable_state_resumes(astha: Astha) -> None:
    store = await open_store(astha.url)
    try:
        await write(store, "t0")
        first = astha.run()
        await eventually(
            lambda: all(len(calls(astha, name, first)) == 2 for name in ("in_memory", "durable")),
            "the first refresh",
            60.0,
        )
        await write(store, "t1", "t2")
        await acknowledged(astha, store, first, "t2")
        for component in ("in_memory", "durable"):
            assert calls(astha, component, first) == ["start", "refresh t0", "INSERT t1", "INSERT t2"]

        before = ["t0", "t1", "t2"]
        killed = first
        for life in range(2):
            killed.send(signal.SIGKILL)
            assert killed.ended() == -signal.SIGKILL
            missed, later = [f"missed{life}a", f"missed{life}b"], f"zlater{life}"
            await write(store, *missed)  # while no daemon runs
            daemon = astha.run()
            wanted = ",".join(sorted([*before, *missed]))
            await refreshed(astha, daemon, wanted)
            await write(store, later)
            await acknowledged(astha, store, daemon, later)
            assert calls(astha, "in_memory", daemon) == ["start", f"refresh {wanted}", f"INSERT {later}"]
            assert calls(astha, "durable", daemon) == ["start", *(f"INSERT {name}" for name in (*missed, later))]
            before += [*missed, later]
            killed = daemon
    finally:
        await store.close()
