"""A daemon in a process of its own, so that it can be killed. ``python -m tests.faults.daemon_process`` and JSON."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.daemon import Daemon, DaemonSettings, NamedSubscriber
from astha.leadership import Leadership, LeaseSettings
from astha.settings.registry import conninfo_of
from astha.settings.source import SourceSettings, parse_stream_url
from astha.sources.cockroachdb import CockroachSource
from astha.sources.contract import Source
from astha.sources.dynamodb.source import DynamoSource
from astha.sources.factory import open_follower
from astha.sources.limits import TransactionLimits
from astha.sources.postgres.source import PostgresSource, PostgresSourceSettings
from astha.sources.sqlite import SqliteSource, TailSettings
from astha.subscribers.context import ComponentContext, ComponentState, LakeSettings
from astha.subscribers.lane_policy import LanePolicy
from astha.subscribers.loader import load_component
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import parse_url
from registry.errors import Unavailable
from registry.models import PUBLISHED
from tests.faults.durable_component import DurableComponent, FaultInjector

log = structlog.get_logger(__name__)

EVERYTHING = frozenset(kind.table for kind in PUBLISHED)
STREAMS = frozenset({"topics", "partitions", "consumer_groups", "consumer_offsets"})

QUICK = LanePolicy(
    backoff_initial_s=0.005, backoff_max_s=0.1, delivery_timeout_s=0.5, breaker_failures=10, breaker_reset_s=0.2,
    health_interval_s=0.5, health_timeout_s=1.0, drain_timeout_s=0.3, refresh_timeout_s=20.0,
)  # fmt: skip
SINK = QUICK.model_copy(update={"delivery_timeout_s": 5.0, "health_timeout_s": 3.0, "drain_timeout_s": 2.0})
COMPONENTS: dict[str, tuple[frozenset[str], bool, LanePolicy]] = {
    "whole": (EVERYTHING, True, QUICK),
    "single": (STREAMS, False, QUICK),
    "small": (EVERYTHING, True, QUICK.model_copy(update={"max_events": 60})),
    "groups": (frozenset({"consumer_groups"}), True, QUICK),
}


STATE = "state of the daemon"
STATE_END = "end of the daemon's state"


class ProcessOptions(msgspec.Struct):
    """Passed to the process as JSON."""

    url: str
    stream_url: str  # by way of a proxy, perhaps
    directory: str
    seed: str
    fault_rate: float = 0.05
    holder: str = "oracle"
    lease_s: float = 2.0
    group: str = "astha"
    follows: str | None = None  # the URL of a transaction stream, instead of the database
    sinks: dict[str, dict[str, Any]] = {}  # component -> its settings


def make_source(options: ProcessOptions, store: MetadataStore, clock: SystemLoopClock) -> Source:
    if options.follows is not None:
        address, settings = parse_stream_url(options.follows), SourceSettings()
        return open_follower(address, settings, store, options.group, options.url, clock)
    if options.url.startswith("dynamodb"):
        limits, tail = TransactionLimits(events=400), TailSettings(trim_every_s=0.05, poll_s=0.05)
        return DynamoSource(options.url, options.group, limits=limits, settings=tail, clock=clock)
    if options.url.startswith("sqlite"):
        return SqliteSource(options.url, store, settings=TailSettings(trim_every_s=0.05))
    server = PostgresSourceSettings(
        slot="oracle", status_interval_s=0.2, slot_check_interval_s=0.5, silence_limit_s=1.5, connect_timeout_s=3.0,
        reconnect_initial_s=0.02, reconnect_max_s=0.5, transaction_limit_events=400,
    )  # fmt: skip
    if options.url.startswith("cockroachdb"):
        server = server.model_copy(update={"silence_limit_s": 10.0, "connect_timeout_s": 10.0})
        return CockroachSource(conninfo_of(parse_url(options.stream_url)), store, server, clock)
    return PostgresSource(options.stream_url, store, server, clock)


def make_sinks(
    options: ProcessOptions,
    store: MetadataStore,
    clock: SystemLoopClock,
    states: Callable[[], Sequence[ComponentState]] = tuple,
) -> list[NamedSubscriber]:
    """`states` are those of the daemon's components, as in `astha/wiring.py`: heartbeats carry a sink's position."""
    context = ComponentContext(
        store, clock, SecretStr(options.url), LakeSettings(), tables=EVERYTHING, component_states=states
    )
    found = []
    for name, settings in options.sinks.items():
        own = msgspec.structs.replace(context, component=name, group=options.group)
        found.append(NamedSubscriber(name, load_component(name, settings, own), SINK))
    return found


async def connect_with_retries(url: str) -> MetadataStore:
    while True:
        try:
            return await open_store(url)
        except Unavailable:
            await asyncio.sleep(0.05)


def log_state(daemon: Daemon) -> None:
    """For the report of a failed test."""
    for state in daemon.component_states():
        log.info(STATE, **msgspec.structs.asdict(state))
    for component in daemon.components:
        problems = getattr(component.subscriber, "problems", tuple)
        log.info(STATE, component=component.name, problems=[repr(problem) for problem in problems()])
    lease = daemon.leadership
    log.info(STATE, source=repr(daemon.source.status()), received=daemon.received, group=lease.group)
    log.info(STATE_END, leads=lease.lease_is_valid())


async def main(options: ProcessOptions) -> None:
    clock = SystemLoopClock()
    directory = Path(options.directory)
    store = await connect_with_retries(options.url)
    running: list[Daemon] = []
    components = make_sinks(options, store, clock, lambda: running[0].component_states() if running else ())
    for name, (tables, whole, policy) in COMPONENTS.items():
        faults = FaultInjector(options.seed + name, directory, options.fault_rate)
        subscriber = DurableComponent(directory / f"{name}.db", tables, faults, whole=whole)
        components.append(NamedSubscriber(name, subscriber, policy))
    leadership = Leadership(store, LeaseSettings(ttl_s=options.lease_s), options.holder, clock, options.group)
    settings = DaemonSettings(ledger_interval_s=0.05, shutdown_timeout_s=3.0)
    daemon = Daemon(store, make_source(options, store, clock), components, leadership, settings, clock)
    running.append(daemon)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, daemon.stop)
    loop.add_signal_handler(signal.SIGUSR1, log_state, daemon)
    (directory / f"{options.holder} is ready").touch()
    try:
        await daemon.run()
    finally:
        await store.close()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=ProcessOptions)))
