"""What the compactor reads and writes in the background: policies of tables, decisions, stale claims."""

from __future__ import annotations

import asyncio

import structlog

from astha.clock_guard import ClockGuard, may_delete_by_age
from components.compactor.execution.claim import abort_stale_claims
from components.compactor.scheduling.scheduler import Scheduler
from registry.clock import Clock, UnchangedTimers
from registry.contract import MetadataStore
from registry.inputs import CompactionDraft
from registry.models import CompactionStatus

log = structlog.get_logger(__name__)

_FINISHED: tuple[CompactionStatus, ...] = ("done", "aborted", "failed", "cancelled")
_DAY_MS = 86_400_000


class JournalWriter:
    def __init__(
        self, store: MetadataStore, clock: Clock, scheduler: Scheduler, guard: ClockGuard | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._scheduler = scheduler
        self._guard = guard
        self._claims = UnchangedTimers[int, int](clock)
        self._writing = asyncio.Lock()

    async def catch_up(self) -> None:
        """Reads tables that have changed, and writes new decisions."""
        await self._read_tables()
        await self._write_decisions()

    async def wait_written(self) -> None:
        """Waits until no decision is being written: one about a partition whose job has begun would come too late."""
        async with self._writing:
            return

    async def cancelled_since(self, table_id: int, partition_path: str, since_ms: int) -> bool:
        """Whether the waiting compaction of the partition was cancelled."""
        rows = await self._store.list_compactions(table_id=table_id, statuses=["cancelled"], limit=100)
        return any(row.partition_path == partition_path and (row.ended_at or 0) >= since_ms for row in rows)

    async def maintain(self, stale_after_s: float, keep_for_days: float) -> None:
        """Aborts stale claims and deletes old decisions."""
        by_age = await may_delete_by_age(self._guard)
        await abort_stale_claims(self._store, self._clock, stale_after_s, self._claims, by_age=by_age)
        if not by_age:
            return
        older_than_ms = int(keep_for_days * _DAY_MS)
        await self._store.prune_compactions(older_than_ms)
        await self._store.prune_compactions(older_than_ms, statuses=_FINISHED)

    async def _read_tables(self) -> None:
        for table_id in self._scheduler.tables.to_read(self._clock.now_ms()):
            table = await self._store.get_table_by_id(table_id)
            metadata = await self._store.get_table_metadata(table_id)
            if table is None or metadata is None:
                self._scheduler.forget(table_id)
            else:
                self._scheduler.introduce(table, metadata)

    async def _write_decisions(self) -> None:
        async with self._writing:
            while decisions := self._scheduler.unrecorded():
                drafts = [decision.draft(self._name(decision.key[0])) for decision in decisions]
                try:
                    await self._store.record_compactions(drafts)
                except BaseException:
                    self._scheduler.journal.put_back(decisions)
                    raise
                for draft in drafts:
                    _log_decision(draft)

    def _name(self, table_id: int) -> str:
        return self._scheduler.tables.name(table_id) or f"table {table_id}"


def _log_decision(draft: CompactionDraft) -> None:
    log.info(
        "compaction decided",
        table=draft.table_name,
        partition=draft.partition_path,
        decision=draft.status,
        rule=draft.rule,
        reason=draft.reason,
        files=draft.input_files,
        bytes=draft.input_bytes,
        position=draft.position,
    )
