"""Figures of `SegmentIndex` and `CachedStore`, for `benchmarks.registry` to call.

Ratios are taken round by round, baseline and subject in turn, and the median is kept: a busy machine slows
both.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Sequence

from registry.cache.entries import CacheEntries, MetadataCachePolicy
from registry.cache.segment_index import SegmentIndex
from registry.cache.single_flight import Fetch
from registry.clock import SystemClock
from registry.contract import MetadataStore
from registry.forwarding import ForwardingStore
from registry.json_text import EMPTY_OBJECT, JsonText
from registry.models import Partition, Segment, Topic
from registry.position import Position

TOPIC = "benchmark"
WIDTH = 100
"""Offsets per segment."""


def index_figures(*, quick: bool = False) -> dict[str, float]:
    """``index_vs_bisect_*``: random offsets. ``index_sequential_vs_bisect``: the worse of two walks."""
    lookups, rounds = (20_000, 7) if quick else (100_000, 15)
    figures = {}
    for size in (10, 1_000, 100_000):
        index, bases = _filled(size)
        dice = random.Random(size)
        offsets = [dice.randrange(size * WIDTH) for _ in range(lookups)]
        figures[f"index_vs_bisect_{size}"] = _ratio(index, bases, offsets, rounds)
    size = 1_000
    index, bases = _filled(size)
    step_by_step = [step % (size * WIDTH) for step in range(lookups)]
    segment_by_segment = [step * WIDTH % (size * WIDTH) for step in range(lookups)]
    figures["index_sequential_vs_bisect"] = max(
        _ratio(index, bases, offsets, rounds) for offsets in (step_by_step, segment_by_segment)
    )
    return figures


def memory_figures() -> dict[str, float]:
    """Measures bytes per entry, with row and strings; rows share nothing, as those of a database driver."""
    count = 20_000
    return {
        "topic_entry_bytes": _bytes_each(count, _cached_topics),
        "partition_entry_bytes": _bytes_each(count, _cached_partitions),
        "index_entry_bytes": _bytes_each(count, lambda count: _filled(count)[0]),
    }


def _ratio(index: SegmentIndex, bases: list[int], offsets: Sequence[int], rounds: int) -> float:
    ratios = []
    lookup, topic = index.lookup, TOPIC
    for _ in range(rounds):
        started = time.perf_counter()
        for offset in offsets:
            bisect_right(bases, offset)
        between = time.perf_counter()
        for offset in offsets:
            lookup(topic, 0, offset)
        ratios.append((time.perf_counter() - between) / (between - started))
    assert index.misses == 0
    return statistics.median(ratios)


def _filled(size: int) -> tuple[SegmentIndex, list[int]]:
    index = SegmentIndex(_Nothing())
    for number in range(size):
        index.add(_segment(number))
    assert len(index) == size
    return index, [number * WIDTH for number in range(size)]


def _segment(number: int) -> Segment:
    base = number * WIDTH
    key = f"segments/2026/11/{number:032d}.seg"
    return Segment(
        number + 1, _own(TOPIC), 0, base, base + WIDTH - 1, WIDTH, 1_000_000 + number,
        _own("bucket-of-segments"), key, number * 1_000_000, 1_800_000_000_000 + number,
    )  # fmt: skip


def _own(text: str) -> str:
    """Returns a string that no other row shares."""
    return text.encode().decode()


def _cached_topics(count: int) -> CacheEntries:
    entries = _entries()
    fetch: Fetch[Topic | None] = Fetch(Position(0))
    for number in range(count):
        now = 1_800_000_000_000 + number
        config = JsonText(_own('{"cleanup":"delete","owner":"nightjob"}'))
        name = f"topic-of-average-name-{number:06d}"
        entries.keep_topic(name, Topic(name, 12, 604_800_000 + number, config, now, now), fetch, ahead=True)
    return entries


def _cached_partitions(count: int) -> CacheEntries:
    entries = _entries()
    fetch: Fetch[Partition | None] = Fetch(Position(0))
    for number in range(count):
        now = 1_800_000_000_000 + number
        topic = f"topic-of-average-name-{number // 10:06d}"
        row = Partition(topic, number % 10, 1_000_000 + number, now, now)
        entries.keep_partition((topic, number % 10), row, fetch, ahead=True)
    return entries


def _entries() -> CacheEntries:
    policy = MetadataCachePolicy(topics=100_000)
    return CacheEntries(policy, SystemClock(), SegmentIndex(_Nothing()))


def _bytes_each(count: int, build: Callable[[int], object]) -> float:
    build(10)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        built = build(count)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
        del built
    finally:
        tracemalloc.stop()
    return used / count


class _Nothing(ForwardingStore):
    """One topic with one partition, and no database."""

    def __init__(self) -> None:
        self.inner: MetadataStore

    async def get_topic(self, name: str) -> Topic | None:
        return Topic(name, 1, None, EMPTY_OBJECT, 0, 0)

    async def get_partition(self, topic: str, partition_id: int) -> Partition | None:
        return Partition(topic, partition_id, 0, 0, 0)

    async def get_segments(
        self, topic: str, partition_id: int, *, from_offset: int = 0, limit: int = 1_000
    ) -> list[Segment]:
        return []

    async def find_segment_for_offset(self, topic: str, partition_id: int, offset: int) -> Segment | None:
        return None
