"""The daemon at work: components receive what writers commit; one fails and recovers by a refresh."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from sqlalchemy import make_url

from astha.clock import SystemLoopClock
from astha.daemon import Daemon, DaemonSettings, NamedSubscriber
from astha.lanes.lane import Lane
from astha.leadership import Leadership, LeaseSettings
from astha.sources.factory import open_source
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import TailSettings
from astha.subscribers import Subscriber
from astha.subscribers.lane_policy import LanePolicy
from astha.testing import Fault, FaultySubscriber, RecordingSubscriber
from components.commands.demo.stage import Stage
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.inputs import FileDraft, TableDraft
from registry.json_text import to_json_text
from registry.migrate import migrate
from registry.models import PUBLISHED, Row

WRITERS, COMMITS, FILES = 4, 100, 5
PATIENCE_S = 120.0

_IMPATIENT = LanePolicy(attempts=4, backoff_initial_s=0.05, breaker_failures=4, breaker_reset_s=0.5)


@dataclass(frozen=True)
class ComponentOutcome:
    name: str
    events: int
    refreshes: int
    dropped: int
    latency_ms: float
    equal: bool

    def cells(self) -> dict[str, str]:
        return {
            "events delivered": f"{self.events:,}",
            "dropped, then refreshed": f"{self.dropped}",
            "refreshes": f"{self.refreshes}",
            "commit to delivery, mean": f"{self.latency_ms:.1f} ms",
            "its rows equal the registry's": "yes" if self.equal else "NO",
        }


async def show(url: str, stage: Stage) -> list[ComponentOutcome]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    await asyncio.to_thread(migrate, url)
    components = {
        "catalogue": RecordingSubscriber("tables", "table_metadata"),
        "files": RecordingSubscriber("table_files", "table_stats", whole_transactions=True),
        "fragile": FaultySubscriber("table_files"),
    }
    store = await open_store(url)
    try:
        async with running(url, store, components, stage) as lanes:
            await _act(store, components, lanes, stage)
            return [await _outcome(store, lane, components[lane.name]) for lane in lanes]
    finally:
        await store.close()


async def _act(
    store: MetadataStore, components: dict[str, RecordingSubscriber], lanes: list[Lane], stage: Stage
) -> None:
    fragile, lane = components["fragile"], next(lane for lane in lanes if lane.name == "fragile")
    assert isinstance(fragile, FaultySubscriber)  # noqa: S101  (made so above)
    await until(lambda: all(lane.state == "live" for lane in lanes))
    tables = [await store.create_table("demo", f"t{number}", f"/lake/t{number}", _TABLE) for number in range(WRITERS)]
    with stage.working("commits of four writers", WRITERS * COMMITS) as advance:

        async def write(table_id: int) -> None:
            for commit in range(COMMITS):
                await store.add_files(table_id, [_file(table_id, commit, part) for part in range(FILES)])
                advance(1)

        writing = asyncio.gather(*(write(table.id) for table in tables))
        await until(lambda: len(fragile.events) > WRITERS * COMMITS * FILES // 4)
        fragile.misbehave(Fault.FAIL)
        await until(lambda: lane.state == "broken")
        stage.say(f"the circuit of 'fragile' is open: {lane.reason}")
        stage.say("the others continue; the database retains nothing for it")
        await writing
    await until(lambda: len(components["files"].rows["table_files"]) == WRITERS * COMMITS * FILES)
    stage.say("the others have received everything; now 'fragile' works again")
    fragile.behave()
    await until(lambda: lane.state == "live" and len(fragile.rows["table_files"]) == WRITERS * COMMITS * FILES)
    stage.say("'fragile' has refreshed from the registry and is live again")


@asynccontextmanager
async def running(
    url: str, store: MetadataStore, components: Mapping[str, Subscriber], stage: Stage
) -> AsyncIterator[list[Lane]]:
    """Runs a daemon with these components. Yields their lanes, in the same order."""
    clock = SystemLoopClock()
    daemon = Daemon(
        store,
        open_source(url, store, PostgresSourceSettings(slot=_slot_of(url)), TailSettings(), clock),
        [NamedSubscriber(name, subscriber, _IMPATIENT) for name, subscriber in components.items()],
        Leadership(store, LeaseSettings(), "demo", clock),
        DaemonSettings(),
        clock,
    )
    running = asyncio.create_task(daemon.run())
    try:
        yield daemon.lanes
    finally:
        daemon.stop()
        await running
    stage.say("the daemon has stopped; every position is in the ledger")


def _slot_of(url: str) -> str:
    """Slots belong to the server, and each part of the demo has a database of its own."""
    name = make_url(url).database or ""
    return "demo" if "/" in name else f"demo_{name}"


async def _outcome(store: MetadataStore, lane: Lane, subscriber: RecordingSubscriber) -> ComponentOutcome:
    transactions = sum(lane.counts.latency_us.values())
    return ComponentOutcome(
        lane.name,
        len(subscriber.events),
        lane.counts.refreshes,
        lane.counts.dropped,
        lane.counts.latency_sum_us / max(transactions, 1) / 1000,
        await _registry_rows(store, subscriber) == {kind: set(rows.values()) for kind, rows in subscriber.rows.items()},
    )


async def _registry_rows(store: MetadataStore, subscriber: RecordingSubscriber) -> dict[str, set[Row]]:
    async with store.consistent_read() as read:
        return {
            kind.table: {row async for page in read.rows(kind) for row in page}
            for kind in PUBLISHED
            if kind.table in subscriber.subscribed_tables
        }


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (a spectator: nothing here tells it)
            await asyncio.sleep(0.01)


_TABLE = TableDraft(schema=to_json_text([{"id": 1, "name": "value", "type": "long"}]))


def _file(table_id: int, commit: int, part: int) -> FileDraft:
    path = f"/lake/t{table_id}/{commit:06d}-{part}.parquet"
    return FileDraft(
        file_path=path, file_size=4_096, row_count=100, schema_version=1, partition_path=f"day={commit % 7}"
    )
