"""Which claims are stale after the wall clock was set, on both databases."""

from __future__ import annotations

from components.compactor.execution.claim import abort_stale_claims
from registry.clock import UnchangedTimers
from registry.contract import MetadataStore
from registry.models import Compaction
from tests.doubles.clock import ManualClock
from tests.samples import decision

STALE_S = 60.0
HOUR_MS = 3_600_000


async def claim(store: MetadataStore) -> Compaction:
    return await store.begin_compaction(decision("d=1"), operation_id="op", owner="c", stale_after_ms=60_000)


async def test_an_unchanged_claim_with_a_future_time_is_aborted(store: MetadataStore, clock: ManualClock) -> None:
    """Its owner was killed, and the clock set back."""
    await claim(store)
    clock.set(clock.now_ms() - HOUR_MS)
    watch = UnchangedTimers[int, int](clock)
    for _ in range(12):
        assert await abort_stale_claims(store, clock, STALE_S, watch) == []
        clock.advance(10_000)
    (ended,) = await abort_stale_claims(store, clock, STALE_S, watch)
    assert ended.status == "aborted"
    assert "for 120 s" in (ended.reason or "")


async def test_a_renewed_claim_survives_clock_jumps(store: MetadataStore, clock: ManualClock) -> None:
    row = await claim(store)
    watch = UnchangedTimers[int, int](clock)
    for jump_ms in (-HOUR_MS, HOUR_MS):
        clock.set(clock.now_ms() + jump_ms)
        for _ in range(30):
            clock.advance(10_000)
            assert await abort_stale_claims(store, clock, STALE_S, watch, by_age=False) == []
            assert await store.renew_compactions([row.id], owner="c")
