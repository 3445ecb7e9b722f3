"""Claims whose owner has died: ended, so that the journal tells the truth. Their files are the cleaner's."""

from __future__ import annotations

import structlog

from registry.clock import Clock, UnchangedValues
from registry.contract import MetadataStore
from registry.errors import Conflict, NotFound
from registry.inputs import CompactionOutcome
from registry.models import Compaction

log = structlog.get_logger(__name__)


_UNCHANGED = 2.0
"""Times `stale_after_s`: a claim that has not changed for so long while we watched is dead by any clock."""


async def end_dead(
    store: MetadataStore,
    clock: Clock,
    stale_after_s: float,
    watch: UnchangedValues[int, int] | None = None,
    *,
    by_age: bool = True,
) -> list[Compaction]:
    """Those that have given no sign of life for so long. One that lives after all finds out at its next heartbeat.

    ``watch``: of the time of each claim's last sign of life, by id. Without ``by_age`` the wall clock does not count,
    only what that has seen.
    """
    ended = []
    rows = await store.list_compactions(statuses=["running"])
    watched = {} if watch is None else watch.seconds({row.id: row.updated_at for row in rows})
    for row in rows:
        silent_s = (clock.now_ms() - row.updated_at) / 1000 if by_age else 0.0
        if watched.get(row.id, 0.0) >= stale_after_s * _UNCHANGED:
            silent_s = max(silent_s, watched[row.id])
        if row.owner is None or silent_s < stale_after_s:
            continue
        reason = f"no sign of life of {row.owner} for {silent_s:.0f} s"
        try:
            ended.append(
                await store.finish_compaction(
                    row.id, CompactionOutcome(status="aborted", reason=reason), owner=row.owner
                )
            )
        except (Conflict, NotFound):
            continue  # it has ended by itself meanwhile
        log.warning(
            "a compaction died", table=row.table_name, partition=row.partition_path, reason=reason, compaction=row.id
        )
    return ended
