"""Who may read the change log of a SQLite registry: one group of daemons, because its reader deletes what it has read.

The claim is a lease that belongs to the group, not to a daemon: the next leader of the same group gets it at once.
"""

from __future__ import annotations

import asyncio

import structlog

from astha.clock import LoopClock
from astha.errors import ConfigError, Fenced
from registry.clock import Unchanged
from registry.contract import MetadataStore
from registry.errors import Fenced as RegistryFenced
from registry.errors import RegistryError
from registry.models import DaemonLease

log = structlog.get_logger(__name__)

CHANGE_LOG = "change log"
"""The lease's name; with a space, so that no group has it."""

_SHORTEST_TTL_S = 10.0
_RENEWALS_PER_TTL = 4
_TIMEOUT_S = 5.0


def refusal(group: str) -> str:
    return (
        f"the daemons of group {group!r} read the change log of this SQLite registry, which has room for one reader: "
        "let this group follow them over a broker (source.url: kafka://... or mqtt://...), or stop them"
    )


class ChangeLogClaim:
    """`held` is set while this daemon's group has the claim. For the group's leader only."""

    def __init__(self, store: MetadataStore, group: str, lease_ttl_s: float, clock: LoopClock) -> None:
        self.held = asyncio.Event()
        self._store = store
        self._group = group
        self._ttl_s = max(_SHORTEST_TTL_S, lease_ttl_s)
        self._clock = clock

    async def hold(self) -> None:
        """Takes the claim and renews it until cancelled, then releases it.

        Raises ConfigError if another group renews it, which takes a few seconds to see, and Fenced if it was lost.
        """
        lease = None
        try:
            asked, lease = await self._take()
            self.held.set()
            while True:
                await self._clock.sleep(self._ttl_s / _RENEWALS_PER_TTL)
                asked, lease = await self._renew(asked, lease)
        except Fenced:
            lease = None
            raise
        finally:
            self.held.clear()
            if lease is not None:
                await self._release(lease)

    async def _take(self) -> tuple[float, DaemonLease]:
        first: DaemonLease | None = None
        other: DaemonLease | None = None
        unchanged = Unchanged[DaemonLease](self._clock)
        while True:
            asked = self._clock.monotonic()
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    dead = other if other is not None and unchanged.seconds(other) > 2 * self._ttl_s else None
                    lease = await self._store.take_daemon_lease(CHANGE_LOG, self._group, self._ttl_ms, dead=dead)
                    if lease is not None:
                        return asked, lease
                    other = await self._store.get_daemon_lease(CHANGE_LOG)
            except (RegistryError, TimeoutError) as error:
                log.warning("the change log can't be claimed, retrying", error=repr(error))
            if first is None:
                first = other
            elif other is not None and other != first:  # renewed: its holder is alive
                raise ConfigError(refusal(other.holder))
            await self._clock.sleep(self._ttl_s / _RENEWALS_PER_TTL / 2)

    async def _renew(self, asked: float, lease: DaemonLease) -> tuple[float, DaemonLease]:
        now = self._clock.monotonic()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return now, await self._store.renew_daemon_lease(lease, self._ttl_ms)
        except RegistryFenced as error:
            raise Fenced("another daemon reads the change log") from error
        except (RegistryError, TimeoutError) as error:
            log.warning("the claim of the change log was not renewed", error=repr(error))
            if self._clock.monotonic() > asked + self._ttl_s * 0.9:  # clocks run at slightly different speeds
                raise Fenced("the claim of the change log expired while the registry did not answer") from error
            return asked, lease

    async def _release(self, lease: DaemonLease) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._store.release_daemon_lease(lease)
        except (RegistryError, TimeoutError) as error:
            log.warning("the claim of the change log was not released, it will expire", error=repr(error))

    @property
    def _ttl_ms(self) -> int:
        return int(self._ttl_s * 1000)
