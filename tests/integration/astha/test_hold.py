"""`on_exhausted: hold` over both databases: a sink that fails for long sees every event, in order, and once."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from astha.lanes.state import LaneState
from astha.server.health import readiness
from astha.testing import Fault, FaultySubscriber, RecordingSubscriber
from registry.contract import MetadataStore
from registry.models import ConsumerGroup
from tests.fixtures.daemons import QUICK, RunDaemon
from tests.fixtures.databases import Backend
from tests.fixtures.stores import OpenStore

GROUPS = "consumer_groups"
HOLD = QUICK.model_copy(update={"on_exhausted": "hold", "attempts": 3, "max_events": 20})
POLICIES = {"sink": HOLD}
KEEPALIVE = {"status_interval_s": 0.1}


@pytest.fixture(params=["sqlite", "postgres", pytest.param("dynamodb", marks=pytest.mark.long)])
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    return chosen


@pytest.fixture
async def writing(url: str, opened: OpenStore) -> MetadataStore:
    return await opened(url)


def names(subscriber: RecordingSubscriber) -> list[str]:
    return [event.data.group_id for event in subscriber.events if isinstance(event.data, ConsumerGroup)]


async def write(store: MetadataStore, first: int, last: int) -> list[str]:
    wanted = [f"g{number:04}" for number in range(first, last)]
    for name in wanted:
        await store.ensure_consumer_group(name)
    return wanted


async def test_a_sink_that_fails_for_long_gets_every_event_and_delays_no_other(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    sink, other = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"sink": sink, "other": other}, policies=POLICIES, **_source(url))
    await running.live()
    sink.misbehave(Fault.FAIL)
    wanted = await write(writing, 0, 200)
    await running.until(lambda: names(other) == wanted, "the other component, which does not wait")
    lane = running.lane("sink")
    await running.until(lambda: lane.state is LaneState.HELD, "held")
    assert lane.queue.events <= HOLD.max_events, "ten times as many have come"
    assert any("component sink is held" in reason for reason in readiness(running.daemon, 60.0).reasons)
    hits = sink.hits
    await running.until(lambda: sink.hits > hits + 5, "further attempts")
    assert names(sink) == []
    sink.behave()
    wanted += await write(writing, 200, 260)
    await running.until(lambda: len(sink.events) >= len(wanted), "everything")
    assert names(sink) == wanted
    assert (sink.refreshes, lane.counts.dropped) == (1, 0)
    await running.until(lambda: lane.state is LaneState.LIVE and not lane.intake.behind, "the stream again")
    wanted += await write(writing, 260, 270)
    await running.agree(writing)
    assert names(sink) == wanted == names(other)
    await running.stop()


async def test_a_held_component_resumes_after_kill_and_restart(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    sink, other = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
    running = await run_daemon(url, {"sink": sink, "other": other}, policies=POLICIES, **_source(url))
    await running.live()
    before = await write(writing, 0, 5)
    await running.agree(writing)

    async def acknowledged(state: str) -> bool:
        return any((page.state, page.refresh_owed) == (state, False) for page in await writing.read_ledger())

    sink.misbehave(Fault.FAIL)
    wanted = await write(writing, 5, 100)
    await running.until(lambda: running.lane("sink").state is LaneState.HELD, "held")
    await running.until(lambda: acknowledged("held"), "the acknowledged position")
    await running.until(lambda: names(other) == before + wanted, "the other component")
    await running.kill()
    wanted += await write(writing, 100, 120)
    again, rest = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
    again.misbehave(Fault.FAIL)
    running = await run_daemon(url, {"sink": again, "other": rest}, policies=POLICIES, **_source(url))
    await running.until(lambda: running.lane("sink").state is LaneState.HELD, "held again")
    again.behave()
    await running.until(lambda: names(again)[-1:] == wanted[-1:], "everything")
    assert names(again) == (before + wanted)[-len(names(again)) :], "in order; some of before may come again"
    assert set(wanted) <= set(names(again))
    assert again.refreshes == 0
    await running.stop()


async def test_beyond_the_budget_held_events_are_dropped_and_a_refresh_is_owed(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    sink, other = FaultySubscriber(GROUPS), RecordingSubscriber(GROUPS)
    with capture_logs() as lines:
        running = await run_daemon(
            url,
            {"sink": sink, "other": other},
            policies=POLICIES,
            settings={"retained_wal_budget_bytes": 20_000},
            **_source(url),
        )
        await running.live()
        sink.misbehave(Fault.FAIL)
        await write(writing, 0, 1)
        await running.until(lambda: running.lane("sink").state is LaneState.HELD, "held")
        sink.healthy = False
        number = 1
        while running.lane("sink").state is LaneState.HELD and number < 5_000:
            await write(writing, number, number + 50)
            number += 50
        await running.until(lambda: running.lane("sink").state is LaneState.BROKEN, "given up")
        assert "the budget is 20000" in (running.lane("sink").reason or "")
        sink.healthy = True
        sink.behave()
        await running.agree(writing)
        assert sink.refreshes == 2
        assert other.refreshes == 1, "at no cost of the other"
    losses = [line for line in lines if line["event"] == "component loses events that it wanted to hold"]
    assert [(line["component"], line["log_level"]) for line in losses] == [("sink", "error")]
    await running.stop()


def _source(url: str) -> dict[str, float]:
    return {} if url.startswith("sqlite") else KEEPALIVE
