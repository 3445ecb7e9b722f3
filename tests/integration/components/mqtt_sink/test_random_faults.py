"""Random faults between a daemon and its broker; in the end, readers of both layouts have what the registry has."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from typing import Any

import pytest

from astha.sources.continuity import Continuity
from astha.sources.contract import Gap
from astha.subscribers import Topic
from registry.contract import MetadataStore
from registry.errors import NotFound
from tests.doubles.proxy import PostgresProxy
from tests.fixtures.daemons import QUICK, RunDaemon
from tests.integration.components.mqtt_sink.listener import TABLES, Listener, Received
from tests.integration.components.mqtt_sink.test_daemon import sink_of
from tests.servers.mosquitto import Mosquitto
from tests.waiting import eventually

pytestmark = pytest.mark.slow

FAULTS = 25


class Reader:
    """Keeps the topics' rows from messages alone, as the documents advise."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._refresh: str | None = None
        self._read: set[str] = set()
        self.rows: dict[str, Any] = {}

    def take(self, message: Received) -> None:
        if message.topic == f"{self._prefix}/refresh":
            notice = message.json()
            if notice["state"] == "BEGIN":
                self._refresh, self._read = notice["refresh"], set()
            elif notice["refresh"] == self._refresh:
                self.rows = {name: row for name, row in self.rows.items() if name in self._read}
        elif message.topic.startswith(f"{self._prefix}/topics/"):
            self._take_change(message)

    def _take_change(self, message: Received) -> None:
        change = message.json()
        row = change["after"] or change["before"]
        if change["op"] == "d":
            self.rows.pop(row["name"], None)
            return
        self.rows[row["name"]] = row
        if message.properties.get("refresh") == self._refresh:
            self._read.add(row["name"])


class Follower:
    """Runs of topics' numbers without a gap between."""

    def __init__(self) -> None:
        self._continuity = Continuity(TABLES)
        self.runs: list[list[int]] = [[]]

    def take(self, payload: bytes) -> None:
        for batch in self._continuity.take(payload):
            if isinstance(batch, Gap):
                self.runs.append([])
            elif isinstance(batch, list):
                for event in (event for transaction in batch for event in transaction.events):
                    if isinstance(event.data, Topic) and event.before is None:
                        self.runs[-1].append(int(event.data.name.removeprefix("t")))


async def write(store: MetadataStore, seed: random.Random, until: asyncio.Event) -> int:
    """Returns how many topics were created."""
    number = 0
    while not until.is_set():
        await store.create_topic(f"t{number}", 1)
        if seed.random() < 0.3:
            with suppress(NotFound):
                await store.delete_topic(f"t{seed.randrange(number + 1)}")
        number += 1
        await asyncio.sleep(0.01)
    return number


async def disturb(proxy: PostgresProxy, seed: random.Random) -> None:
    for _ in range(FAULTS):
        await asyncio.sleep(seed.uniform(0.05, 0.5))
        match seed.choice(["cut", "refuse", "deaf"]):
            case "cut":
                proxy.cut()
            case "refuse":
                proxy.refuse()
                await asyncio.sleep(seed.uniform(0.05, 1.5))
                proxy.accept()
            case "deaf":
                proxy.go_deaf()
                await asyncio.sleep(seed.uniform(0.05, 1.5))
                proxy.listen()


async def rows_of(store: MetadataStore) -> dict[str, Any]:
    async with store.consistent_read() as snapshot:
        return {row.name: row.partition_count async for page in snapshot.rows(Topic) for row in page}


async def test_readers_converge(
    url: str, store: MetadataStore, run_daemon: RunDaemon, mosquitto: Mosquitto, prefix: str
) -> None:
    chosen = os.environ.get("SEED") or str(random.randrange(1 << 32))
    seed = random.Random(chosen)
    policy = QUICK.model_copy(update={"breaker_failures": 4, "delivery_timeout_s": 2.0})
    async with PostgresProxy("127.0.0.1", mosquitto.port) as proxy, Listener(mosquitto, f"{prefix}/#") as listener:
        sink = sink_of(store, f"mqtt://127.0.0.1:{proxy.port}", prefix, [], timeout_s=0.5)
        running = await run_daemon(url, {"mqtt_sink": sink}, policy=policy)
        await running.live()
        over = asyncio.Event()
        writing = asyncio.create_task(write(store, seed, over))
        await disturb(proxy, seed)
        over.set()
        created = await writing
        reader, follower, taken = Reader(prefix), Follower(), 0

        async def converged() -> bool:
            nonlocal taken
            for message in listener.received[taken:]:
                reader.take(message)
                if message.topic == f"{prefix}/transactions":
                    follower.take(message.payload)
            taken = len(listener.received)
            return {name: row["partition_count"] for name, row in reader.rows.items()} == await rows_of(store)

        await eventually(converged, f"a reader with the registry's rows, SEED={chosen}", 60)
        await running.live()
        await store.create_topic(f"t{created}", 1)
        await eventually(converged, f"the last topic, SEED={chosen}", 60)
        await eventually(lambda: _follows(converged, follower, created), f"the follower has it, SEED={chosen}")
        assert sink._session.connections > 1
    for run in follower.runs:
        assert run == list(range(min(run, default=0), max(run, default=-1) + 1)), f"SEED={chosen}"
    numbers = [number for run in follower.runs for number in run]
    assert numbers == sorted(set(numbers)), f"SEED={chosen}"


async def _follows(converged: Any, follower: Follower, last: int) -> bool:
    await converged()
    return last in follower.runs[-1]
