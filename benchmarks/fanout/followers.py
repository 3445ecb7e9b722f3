"""From a commit to `on_event` in a follower, beside the leader's own component in the same run."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psycopg
import structlog
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.daemon import Daemon, DaemonSettings, NamedSubscriber
from astha.gc_tuning import FreezingCollector
from astha.leadership import Leadership, LeaseSettings
from astha.settings.source import SourceSettings, parse_stream_url
from astha.sources.contract import Source
from astha.sources.factory import open_follower
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.subscribers.context import ComponentContext, LakeSettings
from astha.subscribers.loader import load_component
from benchmarks.pipeline.child import TABLES, Counting, told
from benchmarks.pipeline.wal import INSERT, Wal, prepare
from benchmarks.report import Report, percentile
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from tests.servers.kafka import KafkaBroker
from tests.servers.mosquitto import Mosquitto

RATE = 500  # commits a second
WARM_UP_S = 2
_LIMIT_S = 120
_ABOVE_MS = {"kafka": 5.0, "mqtt": 3.0}
_PREFIX = "benchmark"


class DaemonJob(msgspec.Struct):
    url: str
    group: str
    follows: str | None = None
    sinks: dict[str, dict[str, Any]] = {}


async def follower_figures(report: Report, kafka: KafkaBroker) -> None:
    seconds, rounds = report.pick(10, 4), report.pick(3, 1)
    with tempfile.TemporaryDirectory(prefix="astha-benchmark-") as name, ExitStack() as servers:
        server = servers.enter_context(EmbeddedPostgres())
        prepare(server)
        mosquitto = servers.enter_context(Mosquitto(Path(name) / "mosquitto"))
        streams = {
            "kafka": (f"kafka://{kafka.address}/{{prefix}}.transactions", _kafka_sink(kafka)),
            "mqtt": (f"{mosquitto.url}/{{prefix}}", _mqtt_sink(mosquitto)),
        }
        late: dict[str, list[tuple[list[float], list[float]]]] = {transport: [] for transport in streams}
        for number in range(rounds):
            for transport, (url, sink) in streams.items():
                prefix = f"{_PREFIX}{number}"
                wal = Wal(server, f"{transport}_{number}")
                measured = _measure(wal, url.format(prefix=prefix), sink(prefix), seconds)
                late[transport].append(await asyncio.to_thread(measured))
                wal.close()
    for transport, runs in late.items():
        _report(report, transport, runs)


def _kafka_sink(broker: KafkaBroker) -> Callable[[str], dict[str, dict[str, Any]]]:
    settings = {"bootstrap_servers": broker.address, "layout": "transactions"}
    return lambda prefix: {"kafka_sink": {**settings, "prefix": prefix}}


def _mqtt_sink(broker: Mosquitto) -> Callable[[str], dict[str, dict[str, Any]]]:
    settings = {"url": broker.url, "changes": False}
    return lambda prefix: {"mqtt_sink": {**settings, "prefix": prefix}}


def _measure(
    wal: Wal, stream: str, sinks: dict[str, dict[str, Any]], seconds: int
) -> Callable[[], tuple[list[float], list[float]]]:
    """Returns a function that returns the latencies in the leader and in the follower."""

    def run() -> tuple[list[float], list[float]]:
        leader = DaemonJob(wal.url(), "astha", sinks=sinks)
        follower = DaemonJob(wal.url(), "follower", follows=stream)
        with _process(leader) as leading, _process(follower) as following:
            _wait_until_live(leading, leader)
            _wait_until_live(following, follower)
            with psycopg.connect(wal.url(), autocommit=True) as writer:
                _commit(wal, writer, WARM_UP_S)
                count = _commit(wal, writer, seconds)
            time.sleep(1.0)
            return _latencies(leading, count), _latencies(following, count)

    return run


@contextmanager
def _process(job: DaemonJob) -> Iterator[Connection]:
    """Yields the connection to a daemon that starts."""
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    process = processes.Process(target=serve, args=(msgspec.json.encode(job), theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _wait_until_live(daemon: Connection, job: DaemonJob) -> None:
    if not daemon.poll(_LIMIT_S):
        raise SystemExit(f"the daemon of group {job.group} is not live after {_LIMIT_S} s")
    daemon.recv()


def _commit(wal: Wal, writer: psycopg.Connection[Any], seconds: int) -> int:
    insert = INSERT.format(first="%s", last="%s")
    begun, count = time.perf_counter(), 0
    while count < seconds * RATE and time.perf_counter() - begun < seconds:
        time.sleep(max(0.0, begun + count / RATE - time.perf_counter()))
        writer.execute(insert, [wal.written, wal.written])
        wal.written += 1
        count += 1
    return count


def _latencies(daemon: Connection, count: int) -> list[float]:
    daemon.send("end")
    found: list[int] = daemon.recv()
    return [late / 1000 for late in found[-count:]]


def _report(report: Report, transport: str, runs: list[tuple[list[float], list[float]]]) -> None:
    direct = [median(leader) for leader, _ in runs]
    followed = [median(follower) for _, follower in runs]
    p99 = median(percentile(follower, 0.99) for _, follower in runs)
    direct_p99 = median(percentile(leader, 0.99) for leader, _ in runs)
    report.add(
        f"follower_latency_p50_ms_{transport}",
        median(followed),
        f"commit to on_event at {RATE} commits per second; the leader's own component: {median(direct):.2f} ms",
        at_most=median(direct) + _ABOVE_MS[transport],
    )
    report.add(
        f"follower_latency_p99_ms_{transport}",
        p99,
        f"the leader's own component: {direct_p99:.2f} ms",
    )


def serve(encoded: bytes, parent: Connection) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    with FreezingCollector():  # as `astha run` does
        asyncio.run(_run(msgspec.json.decode(encoded, type=DaemonJob), parent))


async def _run(job: DaemonJob, parent: Connection) -> None:
    store, clock = await open_store(job.url), SystemLoopClock()
    counting = Counting()
    sinks = [NamedSubscriber(name, _sink(name, settings, job, store)) for name, settings in job.sinks.items()]
    leadership = Leadership(store, LeaseSettings(), f"benchmark {job.group}", clock, job.group)
    components = [NamedSubscriber("counting", counting), *sinks]
    daemon = Daemon(store, _source(job, store, clock), components, leadership, DaemonSettings(), clock)
    running = asyncio.create_task(daemon.run())
    while not all(lane.state == "live" for lane in daemon.lanes):
        await asyncio.sleep(0.01)
        if running.done():
            running.result()
    parent.send("ready")
    await told(parent)
    parent.send(counting.late_us)
    daemon.stop()
    await running
    await store.close()


def _source(job: DaemonJob, store: MetadataStore, clock: SystemLoopClock) -> Source:
    if job.follows is None:
        slot = psycopg.conninfo.conninfo_to_dict(job.url)["dbname"]
        return PostgresSource(job.url, store, PostgresSourceSettings(slot=str(slot)), clock)
    return open_follower(parse_stream_url(job.follows), SourceSettings(), store, job.group, job.url, clock)


def _sink(name: str, settings: Mapping[str, Any], job: DaemonJob, store: MetadataStore) -> Any:
    context = ComponentContext(
        store, SystemLoopClock(), SecretStr(job.url), LakeSettings(), component=name, tables=TABLES, group=job.group
    )
    return load_component(name, settings, context)
