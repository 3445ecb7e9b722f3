"""A partition claimed in the registry, and the signs of life that keep it so."""

from __future__ import annotations

import structlog

from astha.clock import LoopClock
from components.compactor.execution.cancellation import Brake
from components.compactor.execution.outcome import Outcome
from components.compactor.execution.output_names import Names
from components.compactor.planning.compaction_spec import Assignment
from registry.contract import MetadataStore
from registry.errors import Conflict, NotFound, RegistryError, Unavailable
from registry.inputs import CompactionDraft
from registry.models import Compaction

log = structlog.get_logger(__name__)

_ATTEMPTS = 5
_WAIT_S = 0.2  # doubles


class Claim:
    """One row ``running`` is one claim. Who loses it loses nothing but time: the swap tells the truth."""

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
        assignment: Assignment,
        operation_id: str,
        owner: str,
        stale_s: float,
    ) -> Claim:
        """Conflict says who is at work on the partition."""
        draft = CompactionDraft(
            table_id=assignment.table.id,
            table_name=assignment.name,
            partition_path=assignment.partition_path,
            trigger=assignment.trigger,
            rule=assignment.rule,
            strategy=assignment.strategy,
            explanation=assignment.explanation,
            position=assignment.position,
            input_files=len(assignment.files),
            input_bytes=assignment.input_bytes,
        )
        wait_s = _WAIT_S
        for left in reversed(range(_ATTEMPTS)):
            try:
                row = await store.begin_compaction(
                    draft, operation_id=operation_id, owner=owner, stale_after_ms=int(stale_s * 1000)
                )
            except Unavailable:  # it may have begun: the same operation is answered with the same row
                if not left:
                    raise
                await clock.sleep(wait_s)
                wait_s *= 2
            else:
                break
        return cls(store, clock, row, owner)

    async def beat(self, every_s: float, names: Names, brake: Brake) -> None:
        """For ever: renew the claim and the intents, and listen for a cancellation."""
        while True:
            await self._clock.sleep(every_s)
            try:
                await names.renew()
                rows = await self._store.renew_compactions([self.row.id], owner=self._owner)
            except RegistryError as error:
                log.warning("no sign of life could be given", compaction=self.row.id, error=str(error))
                continue
            if not rows:
                brake.end("aborted", "another compactor has taken this one for dead")
            elif rows[0].cancel_requested:
                brake.end("cancelled", "cancelled by request")

    async def finish(self, outcome: Outcome) -> None:
        """What can't be written now is found by whoever takes the claim over."""
        wait_s = _WAIT_S
        told = outcome.told(self.row.explanation)
        for left in reversed(range(_ATTEMPTS)):
            try:
                await self._store.finish_compaction(self.row.id, told, owner=self._owner)
            except Unavailable as error:
                if left:
                    await self._clock.sleep(wait_s)
                    wait_s *= 2
                    continue
                log.warning("the end of a compaction could not be written", compaction=self.row.id, error=str(error))
            except (Conflict, NotFound) as error:
                log.warning("a compaction had ended otherwise", compaction=self.row.id, error=str(error))
            return
