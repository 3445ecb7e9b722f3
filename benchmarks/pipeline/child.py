"""A reader in a process of its own: the daemon with its lanes, or a bare reader without them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import msgspec
import structlog

from astha.clock import LoopClock, SystemLoopClock
from astha.daemon import Daemon, DaemonSettings, NamedSubscriber
from astha.events import Event, Transaction
from astha.gc_tuning import FreezingCollector
from astha.leader_lock import LeaderLock, lock_directory
from astha.leadership import Leadership, LeaseSettings
from astha.redaction import NO_SECRETS
from astha.server import Server
from astha.server.status import DaemonIdentity
from astha.settings import ServerSettings
from astha.sources.postgres.decode import Decoder
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.sources.postgres.stream import ReplicationStream
from benchmarks.processes import memory_mb
from registry.connect import open_store
from registry.contract import ConsistentRead, MetadataStore
from registry.models import Row, Segment
from registry.position import Position

Answer: TypeAlias = dict[str, Any]
Parent: TypeAlias = Connection

TABLES = frozenset({Segment.table})
_LOOK_S = 0.005


class Job(msgspec.Struct, kw_only=True):
    url: str  # of the source: the transport that is measured
    store_url: str
    slot: str
    lanes: int = 4
    hung: int = 0  # of the lanes
    expect: int | None = None  # events, then it ends; None: until it is told to
    bare: bool = False
    refreshes: bool = False  # each word of the parent refreshes the first lane, until it says "end"
    served: bool = False  # with its HTTP server, whose address it says when it is ready


class Counting:
    """The last lane also records the latency of each event."""

    subscribed_tables = TABLES

    def __init__(self, hung: bool = False) -> None:
        self.count = 0
        self.late_us: list[int] = []
        self.hung = hung
        self.first_at: float | None = None

    async def on_event(self, event: Event[Row]) -> None:
        self.count += 1
        if self.hung:
            await asyncio.Event().wait()
        self.late_us.append(time.time_ns() // 1000 - event.committed_at)
        if self.first_at is None:
            self.first_at = time.time()

    async def on_health(self) -> bool:
        return True

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        return


class Refreshing(Counting):
    """Reads all rows in a refresh, and does nothing with them."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshed: list[tuple[int, float]] = []  # rows and seconds of each refresh

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        started, rows = time.perf_counter(), 0
        async for page in snapshot.rows(Segment):
            rows += len(page)
        self.refreshed.append((rows, time.perf_counter() - started))


class Draining(Counting):
    """Only counts, so that the lanes are measured and not a component."""

    async def on_event(self, event: Event[Row]) -> None:
        self.count += 1


def serve(job: Job, parent: Parent) -> None:
    """The process's main function. Unless it expects a number of events, it reports readiness and ends on request."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    with FreezingCollector():  # as `astha run` does
        asyncio.run(run_bare(job, parent) if job.bare else run_daemon(job, parent))


def leadership(job: Job, store: MetadataStore, clock: LoopClock) -> Leadership:
    holder = f"benchmark {time.time_ns()}"
    directory = lock_directory(job.store_url)
    lock = None if directory is None else LeaderLock(directory, "astha", holder)
    return Leadership(store, LeaseSettings(), holder, clock, lock=lock)


async def run_daemon(job: Job, parent: Parent) -> None:
    store = await open_store(job.store_url)
    clock = SystemLoopClock()
    kind = Counting if job.expect is None else Draining
    subscribers = [kind(hung=number < job.hung) for number in range(job.lanes)]
    refreshing = Refreshing()
    if job.refreshes:
        subscribers[0] = refreshing
    daemon = Daemon(
        store,
        PostgresSource(job.url, store, PostgresSourceSettings(slot=job.slot), clock),
        [NamedSubscriber(f"lane{number}", subscriber) for number, subscriber in enumerate(subscribers)],
        leadership(job, store, clock),
        DaemonSettings(),
        clock,
    )
    server = _server(daemon, store, clock) if job.served else None
    url = None if server is None else await server.start()
    (idle_mb, _), cpu = memory_mb(), time.process_time()
    running = asyncio.create_task(daemon.run())
    last = subscribers[-1]
    if job.expect is not None:
        while any(subscriber.count < job.expect for subscriber in subscribers):
            await asyncio.sleep(_LOOK_S)
            if running.done():
                running.result()
        peak_mb = memory_mb()[1]
        answer: Answer = {"last_at": time.time(), "cpu": time.process_time() - cpu}
        parent.send({**answer, "peak_mb": peak_mb, "grown_mb": peak_mb - idle_mb})
    else:
        while not all(lane.state == "live" for lane in daemon.lanes):  # noqa: ASYNC110  (looking costs it nothing)
            await asyncio.sleep(0.001)
        parent.send({"ready": True, "url": url})
        while await told(parent) == "refresh":
            before = len(last.late_us)
            daemon.lanes[0].refresh("for the benchmark")
            wanted = len(refreshing.refreshed) + 1
            while len(refreshing.refreshed) < wanted:  # noqa: ASYNC110  (looking costs it nothing)
                await asyncio.sleep(_LOOK_S)
            rows, seconds = refreshing.refreshed[-1]
            parent.send({"rows": rows, "seconds": seconds, "late_us": last.late_us[before:]})
        parent.send({"late_us": last.late_us, "first_at": last.first_at})
    if job.hung:
        await daemon.leadership.resign()
        os._exit(0)  # all is said, and how long a hung component is waited for is not what is measured
    daemon.stop()
    await running
    if server is not None:
        await server.stop()
    await store.close()


def _server(daemon: Daemon, store: MetadataStore, clock: SystemLoopClock) -> Server:
    identity = DaemonIdentity("benchmark", "a registry", stall_after_s=20.0)
    return Server(daemon, store, "astha", ServerSettings(port=0), identity, NO_SECRETS, clock)


async def run_bare(job: Job, parent: Parent) -> None:
    """Uses the same decoder without lanes: the limit for the daemon."""
    stream = await ReplicationStream.open(job.url, SystemLoopClock())
    await stream.start(job.slot, "astha", Position(0), 1, status_interval_s=5.0, silence_s=60.0)
    reader = Counting()

    async def read() -> None:
        async for batch in stream.batches(Decoder({Segment.table: Segment})):
            if isinstance(batch, list):
                await deliver(batch, reader)

    reading = asyncio.create_task(read())
    parent.send({"ready": True})
    await told(parent)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await stream.close()
    parent.send({"late_us": reader.late_us})


async def deliver(batch: list[Transaction], reader: Counting) -> None:
    for transaction in batch:
        for event in transaction.events:
            await reader.on_event(event)


async def told(parent: Parent) -> str:
    """Waits for the parent's next word."""
    with suppress(EOFError):
        return str(await asyncio.to_thread(parent.recv))
    return "end"
