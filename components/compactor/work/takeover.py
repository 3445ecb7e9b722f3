"""Claims whose owner has died: ended, so that the journal tells the truth. Their files are the cleaner's."""

from __future__ import annotations

import structlog

from registry.clock import Clock
from registry.contract import MetadataStore
from registry.drafts import CompactionOutcome
from registry.errors import Conflict, NotFound
from registry.models import Compaction

log = structlog.get_logger(__name__)


async def end_dead(store: MetadataStore, clock: Clock, stale_after_s: float) -> list[Compaction]:
    """Those that have given no sign of life for so long. One that lives after all finds out at its next heartbeat."""
    ended = []
    for row in await store.list_compactions(statuses=["running"]):
        silent_s = (clock.now_ms() - row.updated_at) / 1000
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
