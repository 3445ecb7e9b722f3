"""The daemon's own row: when it is written, and that trouble with it stays in the log."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from structlog.testing import capture_logs

from astha.leadership import Leadership, LeaseSettings
from astha.presence import Presence
from astha.testing import ManualClock
from registry.contract import MetadataStore
from registry.errors import PermissionDenied, Unavailable
from registry.json_text import JsonText
from registry.models import RunningDaemon
from tests.doubles.registry import SmallRegistry

ROW = RunningDaemon("me", "astha", "host", 7, "standby", "sqlite", JsonText("[]"), "0.1", 1, 1)


class Rows:
    """The registry's side."""

    def __init__(self) -> None:
        self.written: list[RunningDaemon] = []
        self.forgotten: list[str] = []
        self.pruned: list[int] = []
        self.error: Exception | None = None
        self.swallows_cancellation = False

    @property
    def store(self) -> MetadataStore:
        return cast("MetadataStore", self)

    async def record_daemon(self, daemon: RunningDaemon) -> None:
        if self.swallows_cancellation:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise PermissionDenied("the server's own error") from None
        if self.error is not None:
            raise self.error
        self.written.append(daemon)

    async def prune_daemons(self, not_seen_for_ms: int) -> int:
        self.pruned.append(not_seen_for_ms)
        return 0

    async def forget_daemon(self, holder: str) -> None:
        if self.error is not None:
            raise self.error
        self.forgotten.append(holder)


class Bench:
    def __init__(self) -> None:
        self.clock, self.rows, self.steady = ManualClock(), Rows(), True
        self.leadership = Leadership(SmallRegistry().store, LeaseSettings(), "me", self.clock)
        self.presence = Presence(self.rows.store, self.leadership, ROW, self.clock, lambda: self.steady)

    @property
    def roles(self) -> list[str]:
        return [row.role for row in self.rows.written]


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_the_row_is_written_at_the_start_on_changes_of_role_and_every_ten_seconds(bench: Bench) -> None:
    async with bench.presence.reported():
        await bench.clock.advance(1)
        assert bench.roles == ["standby"]
        await bench.leadership.acquire()
        await bench.clock.advance(0.1)
        assert bench.roles == ["standby", "leader"]
        await bench.clock.advance(25)
        assert bench.roles == ["standby", "leader", "leader", "leader"]
        await bench.leadership.resign()
        await bench.clock.advance(0.1)
        assert bench.roles[-1] == "standby"
        seen = [row.seen_at for row in bench.rows.written]
        assert seen == sorted(set(seen))
        assert {row.started_at for row in bench.rows.written} == {ROW.started_at}
        assert bench.rows.forgotten == []
    assert bench.rows.forgotten == ["me"]
    assert set(bench.rows.pruned) == {600_000}


async def test_nothing_is_removed_by_age_while_the_clock_is_not_trusted(bench: Bench) -> None:
    bench.steady = False
    async with bench.presence.reported():
        await bench.clock.advance(60)
    assert bench.rows.pruned == []


async def test_trouble_is_logged_once_and_the_row_is_written_again(bench: Bench) -> None:
    bench.rows.error = Unavailable("down")
    with capture_logs() as logs:
        async with bench.presence.reported():
            await bench.clock.advance(60)
            bench.rows.error = None
            await bench.clock.advance(10)
            assert bench.roles == ["standby"]
            bench.rows.error = Unavailable("down again")
    logged = " | ".join(line["event"] for line in logs)
    assert logged.count("daemon can't report itself") == 1
    assert logged.count("daemon reports itself again") == 1
    assert "the daemon's row was not removed" in logged


async def test_an_unexpected_error_does_not_end_it(bench: Bench) -> None:
    bench.rows.error = RuntimeError("a bug")
    async with bench.presence.reported():
        await bench.clock.advance(1)
        bench.rows.error = None
        await bench.clock.advance(120)
        assert bench.roles


async def test_it_ends_although_the_driver_swallows_the_cancellation(bench: Bench) -> None:
    bench.rows.swallows_cancellation = True
    async with asyncio.timeout(30), bench.presence.reported():
        await bench.clock.advance(1)
    assert bench.rows.forgotten == ["me"]
