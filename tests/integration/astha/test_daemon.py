"""The whole daemon on both databases: recovery, restarts, leadership, budgets, and blocked event loops."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from functools import partial

import psycopg
import pytest
import structlog
from structlog.typing import EventDict

from astha.clock import SystemLoopClock
from astha.errors import ConfigError
from astha.events import Event
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from astha.server.health import readiness
from astha.testing import Fault, FaultySubscriber, RecordingSubscriber
from registry.contract import ConsistentRead, MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.engines import parse_url
from registry.inputs import SegmentDraft
from registry.models import ConsumerGroup, Row
from tests.doubles.proxy import PostgresProxy
from tests.faults.oracle import drop_slot
from tests.fixtures.daemons import QUICK, RunDaemon
from tests.fixtures.sources import slot_of
from tests.fixtures.stores import OpenStore
from tests.waiting import eventually

GROUPS = "consumer_groups"


@pytest.fixture
async def writing(url: str, opened: OpenStore) -> MetadataStore:
    return await opened(url)


def names(subscriber: RecordingSubscriber) -> list[str]:
    return [event.data.group_id for event in subscriber.events if isinstance(event.data, ConsumerGroup)]


async def test_commits_reach_every_component_and_only_its_tables(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    subscribers = {
        "groups": RecordingSubscriber(GROUPS),
        "topics": RecordingSubscriber("topics", "partitions", whole_transactions=True),
    }
    running = await run_daemon(url, subscribers)
    await running.live()
    for number in range(20):
        await writing.create_topic(f"t{number}", 2)
        await writing.ensure_consumer_group(f"g{number}")
    await running.agree(writing)
    assert names(subscribers["groups"]) == [f"g{number}" for number in range(20)]
    assert [len(events) for events in subscribers["topics"].transactions] == [3] * 20
    await running.stop()


async def test_a_restart_resumes_and_repeats_nothing_after_a_clean_stop(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    first = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"a": first})
    await running.live()
    await writing.ensure_consumer_group("before")
    await running.agree(writing)
    await running.stop()
    await writing.ensure_consumer_group("between")
    second = RecordingSubscriber(GROUPS)
    second.rows = {table: dict(rows) for table, rows in first.rows.items()}
    running = await run_daemon(url, {"a": second})
    await running.agree(writing)
    assert second.refreshes == 0, "no refresh was owed"
    assert names(second) == ["between"]


async def test_after_kill_9_unacknowledged_events_are_delivered_again(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    first = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"a": first})
    await running.live()
    await running.until(lambda: _settled(writing), "the ledger")
    for number in range(10):
        await writing.ensure_consumer_group(f"g{number}")
    await running.agree(writing)
    await running.kill()
    second = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"a": second})
    await writing.ensure_consumer_group("last")
    await running.until(lambda: names(second)[-1:] == ["last"], "the last one")
    delivered, wanted = names(second), [*(f"g{number}" for number in range(10)), "last"]
    assert delivered == wanted[-len(delivered) :]


async def _settled(store: MetadataStore) -> bool:
    return all(not page.refresh_owed for page in await store.read_ledger())


async def test_a_component_that_owes_a_refresh_gets_it_after_kill_9(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    broken = FaultySubscriber(GROUPS)
    running = await run_daemon(url, {"a": broken})
    await running.live()
    broken.healthy = False
    broken.misbehave(Fault.REJECT)
    await writing.ensure_consumer_group("rejected")

    async def noted() -> bool:
        return any(page.refresh_owed for page in await writing.read_ledger())

    await running.until(noted, "the refresh owed in the ledger")
    await running.kill()
    healed = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"a": healed})
    await running.agree(writing)
    assert healed.refreshes == 1


async def test_changes_are_kept_until_they_are_processed(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    """A daemon that received but has not delivered is killed: the source still has everything."""
    stuck = FaultySubscriber(GROUPS)
    running = await run_daemon(url, {"a": stuck})
    await running.live()
    await running.until(lambda: _settled(writing), "the ledger")
    stuck.misbehave(Fault.HANG)
    for number in range(10):
        await writing.ensure_consumer_group(f"g{number}")
    await running.until(lambda: running.lane("a").queue.events == 10, "all received")
    await asyncio.sleep(0.3)  # several writes of the ledger, all of which must leave the source alone
    await running.kill()
    second = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"a": second})
    await second.until(lambda: len(second.events) == 10)
    assert names(second) == [f"g{number}" for number in range(10)]
    assert second.refreshes == 0


async def test_a_component_added_later_is_refreshed_and_others_are_not(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    old = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"old": old})
    await running.live()
    await writing.ensure_consumer_group("g")
    await running.agree(writing)
    await running.stop()
    new = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"old": old, "new": new})
    await running.agree(writing)
    assert (old.refreshes, new.refreshes) == (1, 1)


async def test_a_stop_delivers_queued_events(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    slow = FaultySubscriber(GROUPS)
    running = await run_daemon(url, {"a": slow})
    await running.live()
    slow.misbehave(Fault.SLOW, seconds=0.02)
    for number in range(20):
        await writing.ensure_consumer_group(f"g{number}")
    await running.until(lambda: running.lane("a").queue.events > 5, "some of them waiting")
    await running.stop()
    waiting = len(slow.events)
    second = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"a": second})
    await running.live()
    await writing.ensure_consumer_group("last")
    await second.until(lambda: names(second)[-1:] == ["last"])
    assert waiting + len(second.events) == 21, "each of them once"


async def test_a_stop_has_a_time_limit(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    stuck, fine = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"stuck": stuck, "fine": fine}, settings={"shutdown_timeout_s": 0.2})
    await running.live()
    stuck.misbehave(Fault.STUBBORN)
    await writing.ensure_consumer_group("g")
    await running.agree(writing, "fine")
    await running.stop()
    stuck.behave()


async def test_a_second_daemon_stands_by_and_takes_over(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    one, two = RecordingSubscriber(GROUPS), RecordingSubscriber(GROUPS)
    first = await run_daemon(url, {"a": one}, holder="one")
    await first.live()
    second = await run_daemon(url, {"a": two}, holder="two")
    await writing.ensure_consumer_group("g1")
    await first.agree(writing)
    assert two.refreshes == 0
    assert two.events == []
    await first.stop()
    await second.live()
    await writing.ensure_consumer_group("g2")
    await two.until(lambda: names(two)[-1:] == ["g2"])
    assert names(one) == ["g1"]


async def test_a_leader_that_can_no_longer_renew_stops_delivering_before_another_may_begin(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    one, two = RecordingSubscriber(GROUPS), RecordingSubscriber(GROUPS)
    first = await run_daemon(url, {"a": one}, holder="one", lease_s=1.0)
    await first.live()
    second = await run_daemon(url, {"a": two}, holder="two", lease_s=1.0)
    frozen = asyncio.Event()

    async def never(*_: object) -> None:
        frozen.set()
        await asyncio.Event().wait()

    first.daemon.leadership._store.renew_daemon_lease = never  # type: ignore[method-assign, assignment]
    await frozen.wait()
    await eventually(lambda: second.daemon.leadership.leads, "the second's turn")
    assert not first.daemon.leadership.lease_is_valid()
    seen = len(one.events)
    await writing.ensure_consumer_group("g")
    await second.agree(writing)
    assert len(one.events) == seen


async def test_a_component_that_blocks_the_loop_is_named_and_broken_out(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    blocking, fine = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"blocking": blocking, "fine": fine}, settings={"loop_block_limit_s": 0.2})
    await running.live()
    blocking.misbehave(Fault.BLOCK, times=1, seconds=1.0)
    await writing.ensure_consumer_group("g")
    await running.until(lambda: running.lane("blocking").counts.circuit_openings == 1, "the open circuit")
    assert running.lane("fine").counts.circuit_openings == 0
    await running.agree(writing)


class StuckLog:
    """A log whose line about a failed delivery blocks the event loop until the watchdog has noticed."""

    def __init__(self) -> None:
        self.noticed = threading.Event()

    def __call__(self, _logger: object, _method: str, line: EventDict) -> EventDict:
        if line["event"] == "event loop is blocked":
            self.noticed.set()
        elif line["event"] == "delivery failed, will be retried":
            self.noticed.wait(60)
        raise structlog.DropEvent


async def test_a_log_that_blocks_the_loop_is_not_blamed_on_the_component_that_it_is_about(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    failing, fine, stuck = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS), StuckLog()
    before = structlog.get_config()
    structlog.configure(processors=[stuck])
    try:
        running = await run_daemon(url, {"failing": failing, "fine": fine}, settings={"loop_block_limit_s": 0.2})
        await running.live()
        failing.misbehave(Fault.FAIL, times=1)
        await writing.ensure_consumer_group("g")
        await running.agree(writing)
    finally:
        structlog.configure(**before)
    assert stuck.noticed.is_set()
    assert [running.lane(name).counts.circuit_openings for name in ("failing", "fine")] == [0, 0]
    assert failing.refreshes == fine.refreshes


class Restless(RecordingSubscriber):
    """Has a background task."""

    def __init__(self, *tables: str) -> None:
        super().__init__(*tables)
        self.begin = asyncio.Event()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._compute())

    async def _compute(self) -> None:
        await self.begin.wait()
        time.sleep(1.0)  # noqa: ASYNC251  (what it must not do)


async def test_a_component_that_blocks_the_loop_in_a_task_of_its_own_is_named_too(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    restless, fine = Restless(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"restless": restless, "fine": fine}, settings={"loop_block_limit_s": 0.2})
    await running.live()
    restless.begin.set()
    await running.until(lambda: running.lane("restless").counts.circuit_openings == 1, "the open circuit")
    assert running.lane("fine").counts.circuit_openings == 0
    await running.agree(writing)


async def test_a_laggard_is_broken_out_before_the_budget_is_exceeded(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    slow, fine = FaultySubscriber("topics"), RecordingSubscriber("topics")
    running = await run_daemon(url, {"slow": slow, "fine": fine}, settings={"retained_wal_budget_bytes": 200_000})
    await running.live()
    slow.misbehave(Fault.HANG)
    for number in range(40):
        noise = random.Random(number).randbytes(10_000).hex()  # PostgreSQL would compress anything simpler
        await writing.create_topic(f"t{number}", 1, config={"k": noise})
        if running.lane("slow").counts.circuit_openings:
            break
    await running.until(lambda: running.lane("slow").counts.circuit_openings >= 1, "the open circuit")
    assert running.lane("fine").counts.circuit_openings == 0, "who keeps up is not blamed"
    assert "budget" in str(running.lane("slow").reason)
    slow.behave()
    await running.agree(writing)


async def test_a_start_that_fails_leaves_the_others_alone(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    class Unwilling(RecordingSubscriber):
        willing = False

        async def start(self) -> None:
            if not self.willing:
                raise RuntimeError("not yet")

    unwilling, fine = Unwilling(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"unwilling": unwilling, "fine": fine})
    await running.live("fine")
    await writing.ensure_consumer_group("g")
    await running.agree(writing, "fine")
    assert running.lane("unwilling").state is LaneState.BROKEN
    assert unwilling.refreshes == 0
    unwilling.willing = True
    await running.agree(writing)


async def test_a_paused_component_stays_paused_over_a_restart(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    subscriber = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"a": subscriber})
    await running.live()
    running.lane("a").pause()
    await running.stop()
    running = await run_daemon(url, {"a": subscriber})
    await running.until(running.daemon._streaming.is_set, "the stream")
    await writing.ensure_consumer_group("g")
    await asyncio.sleep(0.2)
    assert running.lane("a").state is LaneState.PAUSED
    assert subscriber.events == []
    running.lane("a").resume()
    await running.agree(writing)


# -- PostgreSQL ----------------------------------------------------------------------------------------------


async def test_a_server_that_restarts(own_server: EmbeddedPostgres, opened: OpenStore, run_daemon: RunDaemon) -> None:
    url = own_server.url("postgres")
    subscriber = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"a": subscriber})
    await running.live()
    for number in range(3):
        store = await opened(url)
        await store.ensure_consumer_group(f"g{number}")
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.start)
        await running.agree(await opened(url))
    assert names(subscriber) == ["g0", "g1", "g2"]
    await running.stop()


async def test_a_connection_that_goes_deaf_for_all_of_the_daemon(
    postgres_url: str, postgres: EmbeddedPostgres, opened: OpenStore, run_daemon: RunDaemon
) -> None:
    """The registry's own connections too: nothing hangs for longer than its timeouts, and the daemon leads again."""
    store = await opened(postgres_url)
    subscriber = RecordingSubscriber(GROUPS)
    async with PostgresProxy("127.0.0.1", postgres.port) as proxy:
        limits = {"silence_limit_s": 0.5, "connect_timeout_s": 1.0, "slot": slot_of(postgres_url)}
        running = await run_daemon(proxy.url(postgres_url), {"a": subscriber}, lease_s=2.0, **limits)
        await running.live()
        proxy.go_deaf()
        await store.ensure_consumer_group("unheard")
        await running.until(lambda: not running.daemon.source.status().connected, "the silence noticed")
        await running.until(lambda: not running.daemon.leadership.lease_is_valid(), "an expired lease")
        proxy.listen()
        await running.agree(store)
        await running.stop()


async def test_a_dropped_slot_refreshes_every_component(
    postgres_url: str, opened: OpenStore, run_daemon: RunDaemon
) -> None:
    store = await opened(postgres_url)
    subscribers = {"a": RecordingSubscriber(GROUPS), "b": RecordingSubscriber("topics")}
    running = await run_daemon(postgres_url, subscribers)
    await running.live()
    await asyncio.to_thread(drop_slot, postgres_url, slot_of(postgres_url))
    await store.ensure_consumer_group("g")
    await store.create_topic("t", 1)
    await running.agree(store)
    assert [subscriber.refreshes for subscriber in subscribers.values()] == [2, 2]


async def test_a_config_error_ends_the_daemon_with_the_remedy(postgres_url: str, run_daemon: RunDaemon) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP PUBLICATION astha")
    running = await run_daemon(postgres_url, {"a": RecordingSubscriber(GROUPS)})
    with pytest.raises(ConfigError, match="migrate"):
        await asyncio.wait_for(running.task, 60)


async def test_truncate_refreshes_the_subscribers_of_the_table(
    postgres_url: str, opened: OpenStore, run_daemon: RunDaemon
) -> None:
    store = await opened(postgres_url)
    subscribers = {"a": RecordingSubscriber(GROUPS), "b": RecordingSubscriber("topics")}
    running = await run_daemon(postgres_url, subscribers)
    await running.live()
    await store.ensure_consumer_group("g")
    await running.agree(store)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("TRUNCATE consumer_groups CASCADE")
    await running.agree(store)
    await running.until(lambda: subscribers["a"].refreshes == 2, "the refresh")
    assert subscribers["b"].refreshes == 1


async def test_a_transaction_beyond_every_limit_refreshes_and_memory_stays(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    subscriber = RecordingSubscriber("segments", "topics")
    source = {} if parse_url(url).drivername == "sqlite" else {"transaction_limit_events": 100}
    running = await run_daemon(url, {"a": subscriber}, policy=QUICK.model_copy(update={"max_events": 100}), **source)
    await running.live()
    await writing.create_topic("t", 1)
    await writing.add_segments([SegmentDraft("t", 0, n, n, 1, 1, "b", f"k{n}") for n in range(1_000)])
    await running.agree(writing)
    assert not [event for event in subscriber.events if event.table == "segments"]


class InMemory(RecordingSubscriber):
    """Forgets everything with the process, and takes longer to start than a delivery may."""

    durable = False

    def __init__(self, *tables: str) -> None:
        super().__init__(*tables)
        self.calls: list[str] = []
        self.starting = asyncio.Event()

    async def start(self) -> None:
        self.calls.append("start")
        await self.starting.wait()

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        self.calls.append("refresh")
        await super().on_refresh(snapshot)

    async def on_event(self, event: Event[Row]) -> None:
        self.calls.append("event")
        await super().on_event(event)


async def test_a_component_in_memory_is_refreshed_at_every_start_before_its_first_event(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    policy = QUICK.model_copy(update={"delivery_timeout_s": 0.05})
    for turn in range(2):
        subscriber = InMemory(GROUPS)
        running = await run_daemon(url, {"a": subscriber}, policy=policy)
        await running.until(
            partial(_starts_for, running.lane("a"), 0.2), "a start that takes longer than a delivery may"
        )
        assert not readiness(running.daemon, 60.0).ready
        assert subscriber.calls == ["start"], "not cancelled, and not tried again"
        subscriber.starting.set()
        await running.live()
        await writing.ensure_consumer_group(f"g{turn}")
        await running.agree(writing)
        assert subscriber.calls == ["start", "refresh", "event"]
        assert readiness(running.daemon, 60.0).ready
        await running.stop()


def _starts_for(lane: Lane, seconds: float) -> bool:
    return lane.start_began is not None and SystemLoopClock().monotonic() > lane.start_began + seconds
