"""Looking for segments to merge, and for those beyond a size, with a short and a long history behind them."""

from __future__ import annotations

from statistics import median
from time import perf_counter

from astha.clock import SystemLoopClock
from benchmarks.registries import new_registry
from benchmarks.report import Report
from components.segment_store.maintenance.merge_policy import MergePolicy
from components.segment_store.maintenance.merging import Merger
from components.segment_store.maintenance.retention import RetentionPolicy, TopicRetention
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import SegmentDraft

TOPIC = "history"
LARGE, SMALL = 16 << 20, 100
KEPT = 100  # segments within the size
_BATCH = 1_000


async def history_figures(report: Report, server: EmbeddedPostgres) -> None:
    """One partition per length. Each ends with seven small segments, one too few for a merge."""
    _, store = await new_registry(server, "history")
    lengths = (1_000, report.pick(100_000, 10_000))
    await store.create_topic(TOPIC, len(lengths))
    try:
        for number, length in enumerate(lengths):
            await _fill(store, number, length)
        merge_ms = [await _merge_look_ms(store, number, length) for number, length in enumerate(lengths)]
        size_ms = [await _size_look_ms(store, number) for number in range(len(lengths))]
    finally:
        await store.close()
    for name, what, times in (("merge", "what to merge", merge_ms), ("retention", f"the last {KEPT}", size_ms)):
        report.add(
            f"{name}_look_growth", times[1] / times[0],
            f"looking for {what} in a partition with {lengths[1]:,} segments over one with {lengths[0]:,}, "
            f"medians of 20: {times[1]:.1f} and {times[0]:.1f} ms", at_most=1.5,
        )  # fmt: skip


async def _fill(store: MetadataStore, partition: int, length: int) -> None:
    sizes = [LARGE] * (length - 7) + [SMALL] * 7
    drafts = [
        SegmentDraft(TOPIC, partition, n, n, 1, size, "bucket", f"{partition}/{n:09}", 0, 1, 1)
        for n, size in enumerate(sizes)
    ]
    for first in range(0, length, _BATCH):
        await store.add_segments(drafts[first : first + _BATCH])


async def _merge_look_ms(store: MetadataStore, partition: int, length: int) -> float:
    # With nothing to merge it touches neither objects nor the cache.
    merger = Merger(store, None, None, SystemLoopClock(), "file:///", MergePolicy(min_age_ms=0))  # type: ignore[arg-type]
    times = []
    for _ in range(20):
        started = perf_counter()
        done = await merger.merge({(TOPIC, partition): length - 7})
        times.append((perf_counter() - started) * 1_000)
        assert done.leftovers == {(TOPIC, partition): 7}
    return median(times)


async def _size_look_ms(store: MetadataStore, partition: int) -> float:
    retention = TopicRetention(store, SystemLoopClock(), 500)
    (row,) = await store.get_partitions([(TOPIC, partition)])
    policy = RetentionPolicy(size_bytes=(KEPT - 7) * LARGE + 7 * SMALL)
    times = []
    for _ in range(20):
        started = perf_counter()
        offset = await retention.first_kept_offset(row, policy)
        times.append((perf_counter() - started) * 1_000)
        assert offset == row.high_watermark - KEPT
    return median(times)
