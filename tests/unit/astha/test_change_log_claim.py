"""One group reads a SQLite registry's change log: the claim is the group's, and a dead group's runs out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from astha.change_log_claim import CHANGE_LOG, ChangeLogClaim
from astha.errors import ConfigError, Fenced
from astha.tasks import cancel_and_wait
from astha.testing import ManualClock
from tests.unit.astha.test_leadership import LeaseOffice


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.office = LeaseOffice(self.clock)

    def claim(self, group: str) -> ChangeLogClaim:
        return ChangeLogClaim(self.office.store, group, 3.0, self.clock)

    @asynccontextmanager
    async def holding(self, claim: ChangeLogClaim) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(claim.hold())
        try:
            await self.clock.advance(0.1)
            yield task
        finally:
            await cancel_and_wait(task)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_second_group_is_refused_while_the_first_one_is_alive(bench: Bench) -> None:
    first, second = bench.claim("astha"), bench.claim("reports")
    async with bench.holding(first), bench.holding(second) as refused:
        assert (first.held.is_set(), second.held.is_set()) == (True, False)
        await bench.clock.advance(60)
        assert first.held.is_set()
        with pytest.raises(ConfigError, match=r"daemons of group 'astha' read the change log.*kafka://.*mqtt://"):
            refused.result()
        assert not second.held.is_set()


async def test_a_successor_of_the_same_group_takes_the_claim_at_once(bench: Bench) -> None:
    first, second = bench.claim("astha"), bench.claim("astha")
    async with bench.holding(first) as old, bench.holding(second):
        assert second.held.is_set()
        await bench.clock.advance(10)
        with pytest.raises(Fenced):
            old.result()
        assert second.held.is_set()


async def test_another_group_takes_over_after_the_end(bench: Bench) -> None:
    async with bench.holding(bench.claim("astha")):
        pass
    second = bench.claim("reports")
    async with bench.holding(second):
        assert second.held.is_set()


async def test_the_claim_of_a_group_that_died_runs_out(bench: Bench) -> None:
    lease = await bench.office.store.take_daemon_lease(CHANGE_LOG, "astha", 10_000)
    assert lease is not None
    second = bench.claim("reports")
    async with bench.holding(second) as waiting:
        await bench.clock.advance(5)
        assert not waiting.done(), "it may still be renewed"
        await bench.clock.advance(10)
        assert second.held.is_set()


async def test_a_claim_of_the_future_is_taken_over_if_it_is_never_renewed(bench: Bench) -> None:
    await bench.office.store.take_daemon_lease(CHANGE_LOG, "astha", 10**9)
    second = bench.claim("reports")
    async with bench.holding(second):
        await bench.clock.advance(60)
        assert second.held.is_set()


async def test_a_registry_that_is_away_is_waited_for_and_then_the_claim_is_lost(bench: Bench) -> None:
    bench.office.down = True
    claim = bench.claim("astha")
    async with bench.holding(claim) as task:
        await bench.clock.advance(60)
        assert not task.done()
        bench.office.down = False
        await bench.clock.advance(5)
        assert claim.held.is_set()
        bench.office.down = True
        await bench.clock.advance(5)
        assert not task.done()
        await bench.clock.advance(20)
        with pytest.raises(Fenced):
            task.result()
        assert not claim.held.is_set()
