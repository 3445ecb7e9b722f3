"""Known failure modes of change-data-capture daemons, one test each, on both databases.

"The process reports ready while nothing moves" is the server's: see its own tests.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from astha.lanes.state import LaneState
from astha.testing import Fault, FaultySubscriber, RecordingSubscriber
from registry.contract import MetadataStore
from registry.engines import parse_url
from registry.models import ConsumerGroup, ConsumerOffset
from tests.fixtures.daemons import QUICK, RunDaemon
from tests.fixtures.stores import OpenStore

GROUPS = "consumer_groups"


@pytest.fixture
async def writing(url: str, opened: OpenStore) -> MetadataStore:
    return await opened(url)


def names(subscriber: RecordingSubscriber) -> list[str]:
    return [event.data.group_id for event in subscriber.events if isinstance(event.data, ConsumerGroup)]


async def test_the_first_subscriber_error_deadlocks(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    failing, fine = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"failing": failing, "fine": fine})
    await running.live()
    failing.misbehave(Fault.FAIL, times=1)
    for number in range(50):
        await writing.ensure_consumer_group(f"g{number}")
    await running.agree(writing)
    assert names(failing) == names(fine) == [f"g{number}" for number in range(50)]


async def test_one_subscribers_success_hides_anothers_failure(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    """What one has done must not be acknowledged for the other."""
    failing, fine = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"failing": failing, "fine": fine})
    await running.live()

    async def persisted() -> bool:
        return all(not entry.refresh_owed for entry in await writing.read_ledger())

    await running.until(persisted, "both in the ledger")
    failing.misbehave(Fault.HANG)
    for number in range(10):
        await writing.ensure_consumer_group(f"g{number}")
    await running.agree(writing, "fine")
    await asyncio.sleep(0.3)  # several writes of the ledger
    await running.kill()
    again = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"failing": again, "fine": RecordingSubscriber(GROUPS)})
    await again.until(lambda: len(again.events) == 10)
    assert again.refreshes == 0


async def test_changes_are_removed_from_the_log_before_they_are_processed(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    slow = FaultySubscriber(GROUPS)
    running = await run_daemon(url, {"slow": slow})
    await running.live()
    slow.misbehave(Fault.HANG)
    for number in range(10):
        await writing.ensure_consumer_group(f"g{number}")
    await running.until(lambda: running.lane("slow").queue.events == 10, "all received")
    await asyncio.sleep(0.3)  # time enough to remove them
    assert running.daemon.source.status().acknowledged < running.lane("slow").queue.first().position
    await running.kill()
    second = RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"slow": second})
    await running.agree(writing)


async def test_a_null_before_image(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    subscriber = RecordingSubscriber("consumer_offsets")
    running = await run_daemon(url, {"a": subscriber})
    await running.live()
    await writing.create_topic("t", 1)
    await writing.ensure_consumer_group("g")
    await writing.commit_offset("g", "t", 0, 1, None)
    await writing.commit_offset("g", "t", 0, 2, "note")
    await writing.commit_offset("g", "t", 0, 3, None)
    await writing.delete_consumer_group("g")
    await subscriber.until(lambda: len(subscriber.events) == 4)
    befores = [event.before for event in subscriber.events]
    assert [row.metadata if isinstance(row, ConsumerOffset) else "-" for row in befores] == ["-", None, "note", None]
    await running.agree(writing)


async def test_an_update_is_captured_twice(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    subscriber = RecordingSubscriber("topics")
    running = await run_daemon(url, {"a": subscriber})
    await running.live()
    await writing.create_topic("t", 1)
    for number in range(5):
        await writing.update_topic_config("t", {"n": number})
    await writing.create_topic("last", 1)
    await subscriber.until(lambda: subscriber.events[-1].data == subscriber.rows["topics"].get(("last",)))
    assert [event.operation for event in subscriber.events] == ["INSERT", *["UPDATE"] * 5, "INSERT"]
    for earlier, later in zip(subscriber.events[:5], subscriber.events[1:6], strict=True):
        assert later.before == earlier.data


async def test_a_broken_component_never_comes_back(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    subscriber = FaultySubscriber(GROUPS)
    running = await run_daemon(url, {"a": subscriber}, policy=QUICK.model_copy(update={"breaker_failures": 3}))
    await running.live()
    for number in range(5):
        subscriber.misbehave(Fault.FAIL)
        await writing.ensure_consumer_group(f"g{number}")
        broken = number + 1
        await running.until(lambda n=broken: running.lane("a").counts.circuit_openings >= n, "the open circuit")  # type: ignore[misc]
        subscriber.behave()
        await running.agree(writing)
        await running.live()


async def test_a_poison_event_stops_everybody(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    class Allergic(RecordingSubscriber):
        async def on_event(self, event: object) -> None:
            if "poison" in repr(event):
                raise ValueError("this again")
            await super().on_event(event)  # type: ignore[arg-type]

    allergic, fine = Allergic(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"allergic": allergic, "fine": fine})
    await running.live()
    for name in ("before", "poison", "after"):
        await writing.ensure_consumer_group(name)
    await running.agree(writing)
    assert names(fine) == ["before", "poison", "after"]
    await writing.ensure_consumer_group("later")
    await allergic.until(lambda: names(allergic)[-1:] == ["later"])
    assert running.lane("allergic").state is LaneState.LIVE


async def test_a_full_lane_blocks_the_keepalives(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    """It is full for longer than the server waits for a sign of life."""
    if parse_url(url).drivername == "postgresql":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER ROLE postgres SET wal_sender_timeout = '500ms'")
    try:
        full, fine = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
        small = QUICK.model_copy(update={"max_events": 5, "breaker_reset_s": 60.0, "drain_timeout_s": 0.2})
        running = await run_daemon(url, {"full": full, "fine": fine}, policies={"full": small})
        await running.live()
        full.misbehave(Fault.STUBBORN)
        for number in range(20):
            await writing.ensure_consumer_group(f"g{number}")
        await running.until(lambda: running.lane("full").state is LaneState.BROKEN, "the open circuit")
        await asyncio.sleep(1.5)  # three of the server's timeouts
        assert running.daemon.source.status().connected
        await writing.ensure_consumer_group("after")
        await fine.until(lambda: names(fine)[-1:] == ["after"])
        assert running.lane("fine").counts.refreshes == 1, "no reconnect caused a refresh"
        full.behave()
    finally:
        if parse_url(url).drivername == "postgresql":
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER ROLE postgres RESET wal_sender_timeout")
