from __future__ import annotations

import asyncio
import json

import pytest

from astha.listener.link import EventFrame
from astha.server import event_stream as module
from astha.server.event_stream import EventStream
from tests.unit.astha.server.daemons import tables, topics
from tests.waiting import eventually


class Listener:
    def __init__(self) -> None:
        self.got: list[EventFrame] = []
        self.room = True

    def stream(self, *watched: str, frame_events: int = 256) -> EventStream:
        stream = EventStream(self.got.append, lambda: self.room, frame_events)
        stream.tables = frozenset(watched)
        return stream

    def names(self) -> list[str]:
        lines = b"".join(part.lines for batch in self.got for part in batch.parts)
        return [json.loads(line)["data"]["name"] for line in lines.splitlines()]


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BURST_S", 600.0)


async def test_nothing_is_encoded_without_watchers(listener: Listener) -> None:
    listener.stream()([topics(1, "a")])
    await asyncio.sleep(0)
    assert listener.got == []


async def test_events_are_encoded_after_callbacks_scheduled_before(listener: Listener) -> None:
    order: list[str] = []
    asyncio.get_running_loop().call_soon(order.append, "a lane")
    stream = listener.stream("topics")
    stream([topics(1, "a"), tables(2, "b")])
    stream([topics(3, "c")])
    assert listener.got == []
    asyncio.get_running_loop().call_soon(lambda: order.extend(listener.names()))
    await asyncio.sleep(0)
    assert order == ["a lane", "a", "c"]
    assert len(listener.got) == 1, "one frame for all that came together"


async def test_a_frame_has_whole_transactions_and_not_too_many_events(listener: Listener) -> None:
    listener.stream("topics", frame_events=3)([topics(1, "a", "b"), topics(2, "c", "d"), topics(3, "e")])
    await asyncio.sleep(0)
    assert [sum(part.events for part in batch.parts) for batch in listener.got] == [2, 3]
    assert listener.names() == ["a", "b", "c", "d", "e"]


async def test_without_room_events_are_counted_and_reported_later(listener: Listener) -> None:
    stream = listener.stream("topics")
    listener.room = False
    stream([topics(1, "a", "b"), tables(2, "c")])
    await asyncio.sleep(0)
    assert listener.got == []
    listener.room = True
    stream([topics(3, "d")])
    await eventually(lambda: bool(listener.got), "the next hand-over")
    assert [batch.missed for batch in listener.got] == [{"topics": 2}]
    assert listener.names() == ["d"]


async def test_close_commits_are_sent_together_unless_they_are_large(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_INTERVAL_S", 600.0)
    stream = listener.stream("topics")
    stream([topics(1, "a")])
    await asyncio.sleep(0)
    assert listener.names() == ["a"]
    stream([topics(2, "b")])
    stream([topics(3, "c")])
    await asyncio.sleep(0)
    assert listener.names() == ["a"], "not before the interval is over"
    monkeypatch.setattr(module, "_MAX_PENDING_BYTES", 25)  # each topic has 10
    stream([topics(4, "d")])
    await asyncio.sleep(0)
    assert listener.names() == ["a", "b", "c", "d"]
    assert len(listener.got) == 2


async def test_without_time_events_are_counted_too(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BURST_S", 0.0)
    stream = listener.stream("topics", "tables")
    stream._budget_s = 0.0
    stream([topics(1, "a", "b"), tables(2, "c")])
    await asyncio.sleep(0)
    assert [(batch.parts, batch.missed) for batch in listener.got] == [([], {"topics": 2, "tables": 1})]
