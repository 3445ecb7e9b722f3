from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest

from astha.listener.link import EventFrame, TableLines
from astha.listener.options import Options
from astha.listener.watchers import Watchers, join
from tests.waiting import eventually

TOPICS, TABLES = frozenset({"topics"}), frozenset({"tables"})


class Slow:
    """A connection that sends its buffer only when the test says so."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.buffered = 0
        self.stuck = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.buffered += len(data) if self.stuck else 0

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def lines(self) -> list[dict[str, object]]:
        """Decoded from HTTP's chunks."""
        raw, found = b"".join(self.written), b""
        while raw:
            size, _, rest = raw.partition(b"\r\n")
            found += rest[: int(size, 16)]
            assert rest[int(size, 16) :][:2] == b"\r\n"
            raw = rest[int(size, 16) + 2 :]
        return [json.loads(line) for line in found.splitlines() if line]


def part(table: str, *values: object) -> TableLines:
    return TableLines(table, len(values), b"".join(json.dumps({"n": value}).encode() + b"\n" for value in values))


def watching(watchers: Watchers, tables: frozenset[str] = TOPICS) -> Slow:
    slow = Slow()
    watchers.add(tables, cast("asyncio.WriteTransport", slow))
    return slow


async def test_each_watcher_gets_its_tables_in_order() -> None:
    watchers = Watchers(Options())
    topics, tables, both = (watching(watchers, each) for each in (TOPICS, TABLES, TOPICS | TABLES))
    watchers.received(EventFrame([part("topics", 1), part("tables", 2), part("topics", 3)]))
    watchers.received(EventFrame([part("topics", 4)]))
    await eventually(lambda: len(both.lines()) == 4, "all of it")
    assert [line["n"] for line in both.lines()] == [1, 2, 3, 4]
    assert [line["n"] for line in topics.lines()] == [1, 3, 4]
    assert [line["n"] for line in tables.lines()] == [2]


async def test_watchers_of_one_filter_share_the_same_bytes() -> None:
    watchers = Watchers(Options())
    first, second = watching(watchers), watching(watchers)
    watchers.received(EventFrame([part("topics", 1)]))
    await eventually(lambda: bool(first.written and second.written), "both")
    assert first.written[0] is second.written[0]


async def test_a_new_watcher_gets_no_earlier_events() -> None:
    watchers = Watchers(Options())
    old = watching(watchers)
    watchers.received(EventFrame([part("topics", 1)]))
    new = watching(watchers)
    watchers.received(EventFrame([part("topics", 2)]))
    await eventually(lambda: len(old.lines()) == 2, "both")
    assert new.lines() == [{"n": 2}]


async def test_the_buffer_of_a_slow_watcher_is_bounded_in_bytes_and_missed_events_are_reported() -> None:
    watchers = Watchers(Options(buffer_bytes=200_000))
    slow, quick = watching(watchers), watching(watchers)
    slow.stuck = True
    for number in range(20):
        watchers.received(EventFrame([part("topics", f"{number}{'x' * 50_000}")]))
        await eventually(lambda expected=number + 1: len(quick.lines()) == expected, "the other gets all")  # type: ignore[misc]
    assert slow.buffered < 51_000, "nothing more is given to a connection that has not sent the last"
    assert watchers.bytes_waiting <= 200_000
    slow.stuck, slow.buffered = False, 0
    await eventually(lambda: any("missed" in line for line in slow.lines()), "the gap")
    lines = slow.lines()
    assert [int(str(line["n"])[0]) for line in lines[:-1]] == [0, 1, 2, 3]
    assert lines[-1] == {"missed": 16}
    assert watchers.missed == 16
    assert watchers.bytes_waiting == 0
    watchers.received(EventFrame([part("topics", 99)]))
    await eventually(lambda: slow.lines()[-1] == {"n": 99}, "it goes on")


async def test_the_buffer_is_bounded_in_events() -> None:
    watchers = Watchers(Options(buffer_events=3))
    slow = watching(watchers)
    slow.buffered = 1
    for number in range(5):
        watchers.received(EventFrame([part("topics", number)]))
    await eventually(lambda: watchers.missed == 2, "two too many")
    slow.buffered = 0
    await eventually(lambda: slow.lines() == [{"n": 0}, {"n": 1}, {"n": 2}, {"missed": 2}], "what was kept")


async def test_all_buffers_together_are_bounded_too() -> None:
    watchers = Watchers(Options(buffer_bytes=64 * 1024))
    stuck = [watching(watchers) for _ in range(40)]
    for each in stuck:
        each.buffered = 1
    watchers.received(EventFrame([part("topics", "x" * 60_000)]))
    await eventually(lambda: watchers.missed > 0, "some miss it")
    assert watchers.bytes_waiting <= 16 * 64 * 1024
    assert watchers.missed == 40 - 16 * 64 * 1024 // 60_000


async def test_events_that_the_daemon_left_out_are_reported_in_their_place() -> None:
    watchers = Watchers(Options())
    slow = watching(watchers)
    watchers.received(EventFrame([part("topics", 1)]))
    watchers.received(EventFrame([part("topics", 2)], {"topics": 7, "tables": 9}))
    await eventually(lambda: slow.lines() == [{"n": 1}, {"missed": 7}, {"n": 2}], "the gap between them")


async def test_a_closed_connection_is_noticed_and_its_buffer_released() -> None:
    watchers = Watchers(Options())
    slow = Slow()
    watcher = watchers.add(TOPICS, cast("asyncio.WriteTransport", slow))
    slow.buffered = 1
    watchers.received(EventFrame([part("topics", 1)]))
    await eventually(lambda: watchers.bytes_waiting > 0, "it waits")
    slow.aborted = True
    await eventually(watcher.ended.is_set, "its end")
    watchers.remove(watcher)
    assert (len(watchers), watchers.bytes_waiting) == (0, 0)


async def test_heartbeats_and_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    watchers = Watchers(Options())
    idle, stuck = watching(watchers), watching(watchers)
    watchers.beat()
    assert idle.written == [], "not before ten seconds"
    now = asyncio.get_running_loop().time() + 61
    monkeypatch.setattr("astha.listener.watchers.time.monotonic", lambda: now)
    stuck.buffered = 1
    watchers.beat()
    assert idle.written == [b"1\r\n\n\r\n"]
    assert stuck.aborted
    assert not idle.aborted


def test_chunks_have_whole_frames_and_at_most_the_events_of_a_buffer() -> None:
    chunks = join([EventFrame([part("topics", *range(4))]), EventFrame([part("topics", *range(4))])], TOPICS, 6)
    assert [chunk.events for chunk in chunks] == [4, 4]
    assert join([EventFrame([part("tables", 1)])], TOPICS, 6) == []
