"""A job's claim on a partition: one row ``running`` in the registry, kept alive by heartbeats."""

from __future__ import annotations

import structlog

from astha.backoff import Backoff
from astha.clock import LoopClock
from components.compactor.execution.cancellation import Cancellation
from components.compactor.execution.outcome import JobOutcome
from components.compactor.execution.output_names import OutputNames
from components.compactor.planning.compaction_spec import CompactionSpec
from registry.clock import Clock, UnchangedTimers
from registry.contract import MetadataStore
from registry.errors import Conflict, NotFound, RegistryError, Unavailable
from registry.inputs import CompactionDraft, CompactionOutcome
from registry.models import Compaction

log = structlog.get_logger(__name__)

_ATTEMPTS = 5
_BACKOFF = Backoff(initial_s=0.2, max_s=3.2)

_UNCHANGED = 2.0
"""Times `stale_after_s`: a claim that did not change for so long while we watched is stale by any clock."""


class Claim:
    """Saves work, and protects nothing: a job that loses its claim finds its inputs gone when it swaps."""

    def __init__(self, store: MetadataStore, clock: LoopClock, row: Compaction, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self.row = row

    @classmethod
    async def take(
        cls,
        store: MetadataStore,
        clock: LoopClock,
        spec: CompactionSpec,
        operation_id: str,
        owner: str,
        stale_s: float,
    ) -> Claim:
        """Raises `Conflict`, which names the owner, if another job has the partition."""
        draft = CompactionDraft(
            table_id=spec.table.id,
            table_name=spec.name,
            partition_path=spec.partition_path,
            trigger=spec.trigger,
            rule=spec.rule,
            strategy=spec.strategy,
            explanation=spec.explanation,
            position=spec.position,
            input_files=len(spec.files),
            input_bytes=spec.input_bytes,
        )
        # After `Unavailable` it may have begun: the registry returns the same row for the same operation.
        async for attempt in _BACKOFF.retrying(clock, retry_on=_is_unavailable, attempts=_ATTEMPTS):
            with attempt:
                row = await store.begin_compaction(
                    draft, operation_id=operation_id, owner=owner, stale_after_ms=int(stale_s * 1000)
                )
        return cls(store, clock, row, owner)

    async def heartbeat(self, every_s: float, names: OutputNames, cancellation: Cancellation) -> None:
        """Runs until it is cancelled. Renews the claim and the upload intents, and reads whether to cancel the job."""
        while True:
            await self._clock.sleep(every_s)
            try:
                await names.renew()
                rows = await self._store.renew_compactions([self.row.id], owner=self._owner)
            except RegistryError as error:
                log.warning("compaction heartbeat failed", compaction=self.row.id, error=str(error))
                continue
            if not rows:
                cancellation.stop("aborted", "another compactor has taken over")
            elif rows[0].cancel_requested:
                cancellation.stop("cancelled", "cancelled by request")

    async def finish(self, outcome: JobOutcome) -> None:
        """Writes the outcome to the journal. If that fails, the claim becomes stale, and is aborted as such."""
        record = outcome.to_record(self.row.explanation)
        try:
            async for attempt in _BACKOFF.retrying(self._clock, retry_on=_is_unavailable, attempts=_ATTEMPTS):
                with attempt:
                    await self._store.finish_compaction(self.row.id, record, owner=self._owner)
        except Unavailable as error:
            log.warning("compaction outcome not recorded", compaction=self.row.id, error=str(error))
        except (Conflict, NotFound) as error:
            log.warning("compaction had another outcome already", compaction=self.row.id, error=str(error))


async def abort_stale_claims(
    store: MetadataStore,
    clock: Clock,
    stale_after_s: float,
    watch: UnchangedTimers[int, int] | None = None,
    *,
    by_age: bool = True,
) -> list[Compaction]:
    """Aborts claims without a heartbeat for ``stale_after_s``. A job that lives all the same learns it at its next one.

    ``watch`` holds the time of each claim's last heartbeat, by id. Without ``by_age`` only ``watch`` counts, not the
    wall clock. Files of aborted jobs are left to the cleaner.
    """
    aborted = []
    rows = await store.list_compactions(statuses=["running"])
    watched = {} if watch is None else watch.seconds({row.id: row.updated_at for row in rows})
    for row in rows:
        silent_s = (clock.now_ms() - row.updated_at) / 1000 if by_age else 0.0
        if watched.get(row.id, 0.0) >= stale_after_s * _UNCHANGED:
            silent_s = max(silent_s, watched[row.id])
        if row.owner is None or silent_s < stale_after_s:
            continue
        reason = f"no heartbeat of {row.owner} for {silent_s:.0f} s"
        try:
            aborted.append(
                await store.finish_compaction(
                    row.id, CompactionOutcome(status="aborted", reason=reason), owner=row.owner
                )
            )
        except (Conflict, NotFound):
            continue  # it has ended meanwhile
        log.warning(
            "stale compaction aborted", table=row.table_name, partition=row.partition_path, reason=reason,
            compaction=row.id,
        )  # fmt: skip
    return aborted


def _is_unavailable(error: BaseException) -> bool:
    return isinstance(error, Unavailable)
