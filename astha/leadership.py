"""One daemon leads, others stand by: a lease in the registry, with an epoch that fences earlier leaders.

A leader delivers only while its lease is valid, by its own monotonic clock counted from *before* the registry was
asked. A process that was paused for longer finds at its next delivery that its lease has expired.

A standby takes the lease when it has expired or was released. It need not wait for a leader whose process has ended on
this machine, such as one in a container that was restarted: `LeaderLock` tells. A standby that runs already learns of
the end at once: see `ReleaseWatch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from astha.clock import LoopClock
from astha.errors import ConfigError, LeadershipLost
from astha.leader_lock import LeaderLock
from astha.release_watch import ReleaseWatch
from astha.settings.groups import LeaseSettings as LeaseSettings
from astha.tasks import first_of, raise_if_cancelled
from registry.clock import UnchangedTimer
from registry.contract import MetadataStore
from registry.errors import Fenced, PermissionDenied, RegistryError, SchemaMismatch, Unavailable
from registry.models import DaemonLease

log = structlog.get_logger(__name__)

_ANSWER_WITHIN_S = 30.0

_LONGEST_POLL_S = 0.5
"""A standby notices a released lease within this time, however long the lease's TTL is."""

_RELEASE_CHECKS, _RELEASE_CHECK_S = 20, 0.005
"""After the leader's file was closed: how often and at which intervals its lock is tried."""

_DEAD_AFTER_TTLS = 5.0
"""A lease that has not changed for this many TTLs of our own monotonic clock is taken over, whenever it says that it
expires: its holder stopped delivering after less than one. See docs/decisions/0018-clocks.md.
"""


class Leadership:
    """Leadership of one group of daemons. `changed` is set whenever this daemon begins or ceases to lead."""

    def __init__(
        self,
        store: MetadataStore,
        settings: LeaseSettings,
        holder: str,
        clock: LoopClock,
        group: str = "astha",
        lock: LeaderLock | None = None,
    ) -> None:
        self.group = group
        self.changed = asyncio.Event()
        self._store = store
        self._settings = settings
        self._holder = holder
        self._clock = clock
        self._valid_until = 0.0
        self._lease: DaemonLease | None = None
        self._failures = 0
        self._lock = lock
        self.standing_by = False  # another daemon leads
        self.trouble: str | None = None  # why the lease can't be requested; None while another daemon may lead

    @property
    def lease(self) -> DaemonLease:
        if self._lease is None:
            raise LeadershipLost("this daemon does not lead")
        return self._lease

    @property
    def leads(self) -> bool:
        return self._lease is not None

    def lease_is_valid(self) -> bool:
        """Whether no other daemon can be leading now."""
        return self._clock.monotonic() < self._valid_until

    async def acquire(self) -> None:
        """Returns when this daemon leads. Raises ConfigError if the database role may not take the lease."""
        others = UnchangedTimer[DaemonLease](self._clock)
        if self._lock is None:
            await self._acquire(others, asyncio.Event().wait)
            return
        with ReleaseWatch(self._lock.path) as watch:
            loop = asyncio.get_running_loop()
            await self._with_lock(lambda _: watch.arm(loop))
            await self._acquire(others, partial(self._released, watch))

    async def _acquire(self, others: UnchangedTimer[DaemonLease], released: Callable[[], Awaitable[object]]) -> None:
        self.standing_by = False
        while True:
            raise_if_cancelled()
            asked = self._clock.monotonic()
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    lease = await self._take(others)
            except PermissionDenied as error:
                raise ConfigError(str(error)) from error
            except (Unavailable, SchemaMismatch, TimeoutError) as error:
                self._note_failure(error)
            else:
                self._failures, self.trouble = 0, None
                if lease is not None:
                    self._accept(lease, asked)
                    self.standing_by = False
                    self.changed.set()
                    log.info("daemon leads", group=self.group, epoch=lease.epoch, holder=self._holder)
                    return
                if not self.standing_by:
                    self.standing_by = True
                    log.info("another daemon leads, standing by", group=self.group)
            poll = self._clock.sleep(min(self._settings.ttl_s / 5, _LONGEST_POLL_S))
            await first_of(poll, released())

    async def _released(self, watch: ReleaseWatch) -> None:
        """Returns when the leader on this machine has closed its lock, because its process has ended or it resigns."""
        while True:
            await watch.closed()
            for _ in range(_RELEASE_CHECKS):  # a process that ends closes its files before it releases their locks
                if await self._with_lock(LeaderLock.looks_free):
                    return
                await self._clock.sleep(_RELEASE_CHECK_S)

    async def _take(self, others: UnchangedTimer[DaemonLease]) -> DaemonLease | None:
        name, holder, ttl_ms = self.group, self._holder, self._ttl_ms
        lease = await self._store.take_daemon_lease(name, holder, ttl_ms)
        if lease is not None:
            return lease
        held = await self._store.get_daemon_lease(name)
        if held is None:
            return None
        ended = await self._with_lock(lambda lock: lock.take_from(held.holder))
        if not ended and others.seconds(held) < self._settings.ttl_s * _DEAD_AFTER_TTLS:
            return None
        lease = await self._store.take_daemon_lease(name, holder, ttl_ms, dead=held)
        if lease is not None:
            reason = "its process has ended" if ended else "unchanged for long"
            log.warning("took over a lease", reason=reason, previous_holder=held.holder, expires_at=held.expires_at)
        return lease

    async def _with_lock(self, call: Callable[[LeaderLock], bool]) -> bool:
        """Returns False if there is no lock. A file system that does not answer never delays a renewal again."""
        if self._lock is None:
            return False
        try:
            async with asyncio.timeout(self._settings.ttl_s / 4):
                return await asyncio.to_thread(call, self._lock)
        except TimeoutError:
            log.warning(
                "the directory of the leader's lock does not answer: a successor waits for the lease",
                file=str(self._lock.path),
            )
            self._lock = None
            return False

    async def hold(self) -> None:
        """Renews the lease until cancelled. Raises `LeadershipLost` when leadership is lost."""
        while True:
            raise_if_cancelled()
            await self._with_lock(LeaderLock.take)  # each time: another standby may have had it for a moment
            await self._clock.sleep(self._settings.ttl_s / 4)
            asked = self._clock.monotonic()
            try:
                async with asyncio.timeout(self._settings.ttl_s / 2):
                    lease = await self._store.renew_daemon_lease(self.lease, self._ttl_ms)
            except Fenced as error:
                self._valid_until = 0.0
                raise LeadershipLost(str(error)) from error
            except (PermissionDenied, Unavailable, TimeoutError) as error:
                log.warning("lease not renewed", error=repr(error))
                if not self.lease_is_valid():
                    raise LeadershipLost("the lease expired while the registry did not answer") from error
            else:
                self._accept(lease, asked)

    async def resign(self) -> None:
        """Releases the lease, so that a standby can lead at once."""
        lease, self._lease = self._lease, None
        self._valid_until = 0.0
        self.changed.set()
        if lease is not None:
            try:
                async with asyncio.timeout(self._settings.ttl_s):
                    await self._store.release_daemon_lease(lease)
            except (RegistryError, TimeoutError) as error:
                log.warning("lease not released, it will expire", error=repr(error))
        await self._with_lock(LeaderLock.release)

    def _note_failure(self, error: Exception) -> None:
        """Logs the first, second, fourth, eighth failure and so on: a database may be down for days."""
        self.trouble = str(error) or repr(error)
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            log.warning("can't ask for leadership", error=repr(error), failures=self._failures)

    def _accept(self, lease: DaemonLease, asked: float) -> None:
        self._lease = lease
        self._valid_until = asked + self._settings.ttl_s * 0.9  # clocks run at slightly different speeds

    @property
    def _ttl_ms(self) -> int:
        return int(self._settings.ttl_s * 1000)
