"""Rounds of maintenance: deletes files of abandoned uploads and completes interrupted drops."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import structlog

from astha.clock import LoopClock
from astha.clock_guard import ClockGuard, may_delete_by_age
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from components.lib.lake.table_lookup import finish_drop, full_name
from components.metadata_orchestrator.settings import OrchestratorSettings
from registry.contract import MetadataStore

log = structlog.get_logger(__name__)

_MAX_SHOWN = 20


class MaintenanceStatistics(msgspec.Struct):
    """Since construction."""

    rounds: int = 0
    failures: int = 0  # of steps; each is repeated in the next round
    objects_deleted: int = 0
    tables_dropped: int = 0
    refused: dict[str, str] = {}  # by path of an intent: why it must not be deleted


class Maintenance:
    def __init__(
        self,
        store: MetadataStore,
        objects: Objects,
        clock: LoopClock,
        settings: OrchestratorSettings,
        stale_after_s: float,
        guard: ClockGuard | None = None,
    ) -> None:
        self._store = store
        self._stale_after_s = stale_after_s
        self._objects = objects
        self._clock = clock
        self._settings = settings
        self._guard = guard
        self._owner = f"cleaner-{secrets.token_hex(8)}"
        self.statistics = MaintenanceStatistics()
        self._refused_at: dict[str, tuple[int, float]] = {}  # since when, and when it was refused last

    async def run(self, *others: Callable[[], Awaitable[None]]) -> None:
        """Runs until cancelled, the first round at once. A step that fails does not prevent the next one."""
        while True:
            for step in (self.clean, self.finish_drops, *others):
                await self._attempt(step)
            self.statistics.rounds += 1
            await self._clock.sleep(self._settings.maintenance_every_s)

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except Exception as error:
            self.statistics.failures += 1
            wait_s = self._settings.maintenance_every_s
            log.warning("maintenance step failed", step=step.__name__, error=repr(error), wait_s=wait_s)

    async def clean(self) -> None:
        """Deletes objects of stale upload intents: announced, but neither registered nor renewed for a long time."""
        if not await may_delete_by_age(self._guard):
            return
        cleaned = await clean_intents(self._store, self._objects, int(self._stale_after_s * 1000), self._owner)
        self.statistics.objects_deleted += len(cleaned.deleted)
        self._note_refused(cleaned.refused)
        if cleaned.deleted or cleaned.failed:
            log.info(
                "abandoned uploads deleted",
                deleted=len(cleaned.deleted),
                registered=len(cleaned.kept),
                failed=len(cleaned.failed),
            )

    def refusals(self) -> Iterator[tuple[str, str, int]]:
        """Yields path, reason and time of refused deletions, the oldest first, up to a limit."""
        for path, (since, _) in list(self._refused_at.items())[:_MAX_SHOWN]:
            yield path, self.statistics.refused[path], since

    def _note_refused(self, refused: dict[str, str]) -> None:
        """A refused intent is claimed again when it is stale again, not in every round: it counts until then."""
        now = self._clock.monotonic()
        for path, reason in refused.items():
            since = self._refused_at[path][0] if path in self._refused_at else self._clock.now_ms()
            self._refused_at[path] = (since, now)
            self.statistics.refused[path] = reason
        expired = now - 2 * (self._stale_after_s + self._settings.maintenance_every_s)
        for path in [path for path, (_, at) in self._refused_at.items() if at < expired]:
            del self._refused_at[path], self.statistics.refused[path]

    async def finish_drops(self) -> None:
        for table in await self._store.list_tables():
            if table.status == "dropping":
                await self.finish_drop(table.id)

    async def finish_drop(self, table_id: int) -> None:
        """Does nothing if the table is gone or is no longer being dropped."""
        table = await self._store.get_table_by_id(table_id)
        if table is None or table.status != "dropping" or not await finish_drop(self._store, table):
            return
        self.statistics.tables_dropped += 1
        log.info("table dropped", table=full_name(table), table_id=table_id, files=table.file_count)
