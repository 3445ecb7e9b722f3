"""Leadership: one daemon at a time, by a lease that counts from before it was requested."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import cast

import pytest

from astha.errors import Fenced
from astha.leadership import Leadership, LeaseSettings
from astha.testing import ManualClock
from registry.contract import MetadataStore
from registry.errors import Fenced as RegistryFenced
from registry.errors import Unavailable
from registry.models import DaemonLease


class LeaseOffice:
    """The registry's side of the lease, with a clock of its own."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.lease: DaemonLease | None = None
        self.down = False
        self.deaf = False
        self.delay = 0.0

    @property
    def store(self) -> MetadataStore:
        return cast("MetadataStore", self)

    async def take_daemon_lease(
        self, name: str, holder: str, ttl_ms: int, *, dead: DaemonLease | None = None
    ) -> DaemonLease | None:
        await self._answer()
        now = self._clock.now_ms()
        lease = self.lease
        if lease is not None and lease.expires_at > now and lease.holder != holder and lease != dead:
            return None
        self.lease = DaemonLease(name, holder, lease.epoch + 1 if lease else 1, now, now + ttl_ms)
        return self.lease

    async def renew_daemon_lease(self, lease: DaemonLease, ttl_ms: int) -> DaemonLease:
        await self._answer()
        if self.lease is None or (self.lease.holder, self.lease.epoch) != (lease.holder, lease.epoch):
            raise RegistryFenced("passed to another")
        self.lease = DaemonLease(
            lease.name, lease.holder, lease.epoch, lease.acquired_at, self._clock.now_ms() + ttl_ms
        )
        return self.lease

    async def get_daemon_lease(self, _name: str) -> DaemonLease | None:
        await self._answer()
        return self.lease

    async def release_daemon_lease(self, lease: DaemonLease) -> bool:
        await self._answer()
        self.lease = None
        return True

    async def _answer(self) -> None:
        if self.deaf:
            await asyncio.Event().wait()
        if self.delay:
            await self._clock.sleep(self.delay)
        if self.down:
            raise Unavailable("down")


class Stage:
    def __init__(self, ttl_s: float = 10.0) -> None:
        self.clock = ManualClock()
        self.office = LeaseOffice(self.clock)
        self.settings = LeaseSettings(ttl_s=ttl_s)
        self.one, self.two = self.daemon("one"), self.daemon("two")

    def daemon(self, holder: str) -> Leadership:
        return Leadership(self.office.store, self.settings, holder, self.clock)


@contextlib.asynccontextmanager
async def running(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_second_stands_by_until_the_first_resigns() -> None:
    stage = Stage()
    await stage.one.acquire()
    async with running(stage.two.acquire()) as waiting:
        await stage.clock.advance(5)
        assert not waiting.done()
        assert not stage.two.lease_is_valid()
        await stage.one.resign()
        assert not stage.one.lease_is_valid()
        await stage.clock.advance(2.1)
        assert waiting.done()
        assert stage.two.lease_is_valid()
        assert stage.two.lease.epoch > 1 or stage.two.lease.holder == "two"


async def test_the_second_takes_over_when_the_first_has_died() -> None:
    stage = Stage()
    await stage.one.acquire()
    async with running(stage.two.acquire()) as waiting:
        await stage.clock.advance(12.1)
        assert waiting.done()
        assert not stage.one.lease_is_valid(), "had it lived, it would know"


async def test_a_lease_of_the_future_is_taken_over_once_it_has_not_changed_for_several_ttls() -> None:
    """The leader was killed, and the clock set back by an hour."""
    stage = Stage()
    await stage.one.acquire()
    stage.clock.jump(-3600)
    async with running(stage.two.acquire()) as waiting:
        await stage.clock.advance(49)
        assert not waiting.done()
        await stage.clock.advance(4)
        assert waiting.done()
        assert stage.two.lease.epoch == 2
        assert not stage.one.lease_is_valid()


async def test_a_leader_that_renews_is_left_alone_when_the_clock_is_set_back() -> None:
    stage = Stage()
    await stage.one.acquire()
    async with running(stage.one.hold()) as holding, running(stage.two.acquire()) as waiting:
        stage.clock.jump(-3600)
        for _ in range(200):
            await stage.clock.advance(1)
            assert stage.one.lease_is_valid()
        assert not waiting.done()
        assert not holding.done()


async def test_two_leases_are_never_valid_at_once() -> None:
    """Whatever the moment at which the first stops renewing."""
    for stop_after in range(30):
        stage = Stage()
        await stage.one.acquire()
        async with running(stage.one.hold()) as holding, running(stage.two.acquire()):
            for tenth in range(400):
                if tenth == stop_after * 5:
                    holding.cancel()
                await stage.clock.advance(0.1)
                assert not (stage.one.lease_is_valid() and stage.two.lease_is_valid())
            assert stage.two.leads


async def test_a_pause_longer_than_the_lease() -> None:
    """The process was frozen: the lease is invalid at the first check, before anything else has run."""
    stage = Stage()
    await stage.one.acquire()
    assert stage.one.lease_is_valid()
    stage.clock._elapsed += 11  # no task ran meanwhile
    assert not stage.one.lease_is_valid()
    await stage.two.acquire()
    async with running(stage.one.hold()) as holding:
        await stage.clock.advance(3)
        with pytest.raises(Fenced):
            await asyncio.wait_for(holding, 10)
    assert not stage.one.lease_is_valid()


async def test_holding_renews() -> None:
    stage = Stage()
    await stage.one.acquire()
    async with running(stage.one.hold()):
        for _ in range(100):
            await stage.clock.advance(1)
            assert stage.one.lease_is_valid()


async def test_the_lease_counts_from_before_the_request() -> None:
    """The response took long: the lease may have begun as early as the request."""
    stage = Stage()
    stage.office.delay = 8.0
    async with running(stage.one.acquire()) as acquiring:
        await stage.clock.advance(8.5)
        assert acquiring.done()
        await stage.clock.advance(0.6)
        assert not stage.one.lease_is_valid(), "9.1 of 10 seconds since it asked"


async def test_a_registry_that_is_down_for_a_moment_does_not_end_leadership() -> None:
    stage = Stage()
    await stage.one.acquire()
    async with running(stage.one.hold()) as holding:
        stage.office.down = True
        await stage.clock.advance(5)
        assert stage.one.lease_is_valid()
        stage.office.down = False
        await stage.clock.advance(5)
        assert stage.one.lease_is_valid()
        assert not holding.done()


async def test_a_registry_that_is_down_for_longer_than_the_lease_ends_leadership() -> None:
    stage = Stage()
    await stage.one.acquire()
    async with running(stage.one.hold()) as holding:
        stage.office.down = True
        await stage.clock.advance(9.5)
        assert not stage.one.lease_is_valid()
        await stage.clock.advance(5)
        with pytest.raises(Fenced):
            await holding


async def test_a_registry_that_never_answers_ends_leadership() -> None:
    stage = Stage(ttl_s=0.4)
    await stage.one.acquire()
    async with running(stage.one.hold()) as holding:
        stage.office.deaf = True
        async with asyncio.timeout(20):
            while not holding.done():
                await stage.clock.advance(0.1)
                await asyncio.sleep(0.01)
        with pytest.raises(Fenced):
            await holding


async def test_resigning_while_the_registry_is_down_or_deaf_ends() -> None:
    stage = Stage(ttl_s=0.3)
    await stage.one.acquire()
    stage.office.down = True
    await stage.one.resign()
    stage.office.down = False
    await stage.one.acquire()
    stage.office.deaf = True
    await asyncio.wait_for(stage.one.resign(), 20)
    assert not stage.one.leads
    with pytest.raises(Fenced):
        _ = stage.one.lease


async def test_requests_continue_while_the_registry_is_down() -> None:
    stage = Stage()
    stage.office.down = True
    async with running(stage.one.acquire()) as acquiring:
        await stage.clock.advance(30)
        assert not acquiring.done()
        stage.office.down = False
        await stage.clock.advance(3)
        assert acquiring.done()
