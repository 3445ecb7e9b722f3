"""Decides whether the wall clock can be trusted. Checked before anything is deleted by age.

Wall time is compared with monotonic time and with the database's. After a jump nothing is deleted by age until the
clock is back, or the new time has been stable for `settle_s`. While the database's clock differs, nothing is deleted by
age at all. Why: docs/decisions/0018-clocks.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog

from astha.settings.groups import ClockSettings as ClockSettings
from registry.clock import Clock
from registry.models import DatabaseTime

log = structlog.get_logger(__name__)

_DRIFT = 0.001
"""Gradual adjustment that is followed, as a fraction of the elapsed time. NTP's limit is half of it."""


class _Jump(msgspec.Struct, frozen=True):
    offset_ms: float
    since: float
    by_s: float


class ClockGuard:
    """One per process. Logs each change of its verdict."""

    def __init__(
        self, clock: Clock, settings: ClockSettings, database_time: Callable[[], Awaitable[DatabaseTime]]
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._database_time = database_time
        self._at = clock.monotonic()
        self._offset_ms = clock.now_ms() - self._at * 1000
        self._jump: _Jump | None = None
        self._disagreement: str | None = None
        self.jumps = 0

    async def begin(self) -> None:
        """Compares with the newest time in the registry, before this process writes its own time there.

        For a database without a clock: if the registry's last entry is older than the tolerance, either nothing was
        written since, or our clock is wrong. The new time must then be stable for `settle_s` first.
        """
        newest = (await self._database_time()).newest_ms
        if newest is not None and abs(self._clock.now_ms() - newest) > self._settings.tolerance_s * 1000:
            self._offset_ms = newest - self._clock.monotonic() * 1000
        await self.trusted()

    async def trusted(self) -> bool:
        """Returns whether something may be deleted by age now. Raises registry errors of the query."""
        before = self._clock.now_ms()
        database = (await self._database_time()).now_ms
        after = self._clock.now_ms()
        if database is not None:
            self._compare(database, before, after)
        return self.steady()

    def steady(self) -> bool:
        """Compares with monotonic time alone, for use between two calls of `trusted`. Read the time before the call."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """The reason why nothing may be deleted by age now, or None."""
        self._detect_jump()
        if self._disagreement is not None:
            return self._disagreement
        jump = self._jump
        if jump is None:
            return None
        left_s = max(0.0, self._settings.settle_s - (self._clock.monotonic() - jump.since))
        return f"the wall clock has jumped by {jump.by_s:+.0f} s: nothing is deleted by age for {left_s:.0f} s more"

    def _compare(self, database: int, before: int, after: int) -> None:
        """The query ran between `before` and `after`, which may be some time apart."""
        ahead_ms = max(before - database, 0) - max(database - after, 0)
        if abs(ahead_ms) <= self._settings.tolerance_s * 1000:
            if self._disagreement is not None:
                log.info("wall clock agrees with the database again")
            self._disagreement = None
            return
        if self._disagreement is None:
            log.warning("wall clock disagrees with the database, nothing is deleted by age", ahead_s=ahead_ms / 1000)
        self._disagreement = (
            f"the wall clock is {ahead_ms / 1000:+.0f} s off the database's: nothing is deleted by age until they agree"
        )

    def _detect_jump(self) -> None:
        at = self._clock.monotonic()
        offset_ms = self._clock.now_ms() - at * 1000
        moved_ms = offset_ms - self._offset_ms
        tolerance_ms = self._settings.tolerance_s * 1000
        if abs(moved_ms) <= tolerance_ms:
            if self._jump is not None:
                log.info("wall clock jumped back")
                self._jump = None
            drift_ms = (at - self._at) * 1000 * _DRIFT
            self._offset_ms += min(max(moved_ms, -drift_ms), drift_ms)
        elif self._jump is None or abs(offset_ms - self._jump.offset_ms) > tolerance_ms:
            self._jump = _Jump(offset_ms, at, moved_ms / 1000)
            self.jumps += 1
            log.warning(
                "wall clock jumped, nothing is deleted by age until it is back or stable",
                by_s=round(moved_ms / 1000, 3), settle_s=self._settings.settle_s,
            )  # fmt: skip
        if self._jump is not None and at - self._jump.since >= self._settings.settle_s:
            log.warning("wall clock is stable again and trusted", by_s=self._jump.by_s)
            self._offset_ms = offset_ms
            self._jump = None
        self._at = at


async def may_delete_by_age(guard: ClockGuard | None) -> bool:
    """As `ClockGuard.trusted`, for callers that may have no guard, such as a command."""
    return guard is None or await guard.trusted()
