"""The daemon's row in the registry: which daemons run, in which group and role. `astha status --all` shows them.

The row is for people and for `astha check`. Leadership never depends on it, so trouble with it is only logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import structlog

from astha.clock import LoopClock
from astha.leadership import Leadership
from astha.tasks import BackgroundTasks, first_of, raise_if_cancelled
from registry.contract import MetadataStore
from registry.errors import RegistryError
from registry.models import RunningDaemon

log = structlog.get_logger(__name__)

_INTERVAL_S = 10.0
_TIMEOUT_S = 5.0
_FORGOTTEN_AFTER_MS = 600_000


def _always() -> bool:
    return True


class Presence:
    """Writes the row at the start, on every change of role and every ten seconds; removes it at the end.

    `store` has connections of its own, so that the row never waits for the work of components. `clock_is_steady`: asked
    before rows of daemons that were not seen for ten minutes are removed.
    """

    def __init__(
        self,
        store: MetadataStore,
        leadership: Leadership,
        daemon: RunningDaemon,
        clock: LoopClock,
        clock_is_steady: Callable[[], bool] = _always,
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._daemon = daemon
        self._clock = clock
        self._clock_is_steady = clock_is_steady
        self._failing = False

    @asynccontextmanager
    async def reported(self) -> AsyncIterator[None]:
        """The row exists during the block, as far as the registry can be reached."""
        tasks = BackgroundTasks("daemon", self._clock)
        tasks.supervise("presence", self._report)
        try:
            yield
        finally:
            await tasks.stop()
            await self._remove()

    async def _report(self) -> None:
        while True:
            self._leadership.changed.clear()
            await self._try_write()
            raise_if_cancelled()
            await first_of(self._clock.sleep(_INTERVAL_S), self._leadership.changed.wait())

    async def _try_write(self) -> None:
        role = "leader" if self._leadership.leads else "standby"
        row = msgspec.structs.replace(self._daemon, role=role, seen_at=self._clock.now_ms())
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._store.record_daemon(row)
                if self._clock_is_steady():
                    await self._store.prune_daemons(_FORGOTTEN_AFTER_MS)
        except (RegistryError, TimeoutError) as error:
            if not self._failing:
                log.warning("daemon can't report itself; `astha status --all` shows it as gone", error=repr(error))
            self._failing = True
        else:
            if self._failing:
                log.info("daemon reports itself again")
            self._failing = False

    async def _remove(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._store.forget_daemon(self._daemon.holder)
        except (RegistryError, TimeoutError) as error:
            log.warning("the daemon's row was not removed; other daemons remove it later", error=repr(error))
