"""Offset lookups in small and large registries, and the speed-up by cache and index."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from itertools import accumulate
from statistics import median
from time import perf_counter, sleep

import psycopg

from benchmarks.registries import RECORDS, SEGMENTS_EACH, fill_topics, new_registry, rows_of
from benchmarks.report import Report, percentile
from registry.cache.store import CachedStore
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres

ZIPF_TOPICS, ZIPF_READS = 10_000, 100_000
HOT_SHARE, HOT_READS = 0.1, 0.9

Ask = Callable[[int], Awaitable[object]]


async def find_p99_growth(report: Report, server: EmbeddedPostgres) -> None:
    """Returns the large registry's URL, for `speedups`."""
    small_url, small = await new_registry(server, "small")
    large_url, large = await new_registry(server, "large")
    each = report.pick(SEGMENTS_EACH, 20)
    fill_topics(small_url, 1, 10, segments_each=SEGMENTS_EACH)
    fill_topics(large_url, 100, 100, segments_each=each)
    chance = random.Random(3)

    async def ask_small() -> object:
        return await small.find_segment_for_offset(
            "t0", chance.randrange(10), chance.randrange(SEGMENTS_EACH * RECORDS)
        )

    async def ask_large() -> object:
        topic, partition = f"t{chance.randrange(100)}", chance.randrange(100)
        return await large.find_segment_for_offset(topic, partition, chance.randrange(each * RECORDS))

    for _ in range(200):
        assert await ask_small()
        assert await ask_large()
    seconds: dict[Callable[[], Awaitable[object]], list[float]] = {ask_small: [], ask_large: []}
    for number in range(report.pick(6_000, 1_000)):
        for ask in (ask_small, ask_large) if number % 2 else (ask_large, ask_small):
            started = perf_counter()
            await ask()
            seconds[ask].append(perf_counter() - started)
    low, high = (percentile(samples, 0.99) for samples in (seconds[ask_small], seconds[ask_large]))
    fewer = "" if each == SEGMENTS_EACH else " (1,000,000 without --quick; the index has three levels in both)"
    report.add(
        "find_p99_growth",
        high / low,
        f"p99 of find_segment_for_offset on PostgreSQL at random offsets, calls alternating: "
        f"10,000 partitions and {rows_of(large_url, 'segments'):,} rows{fewer} {high * 1e3:.2f} ms, "
        f"over 10 partitions and {rows_of(small_url, 'segments'):,} rows {low * 1e3:.2f} ms "
        f"(medians {median(seconds[ask_large]) * 1e3:.2f} and {median(seconds[ask_small]) * 1e3:.2f} ms)",
        at_most=3,
    )
    await speedups(report, large, each)
    await small.close()
    await large.close()


async def speedups(report: Report, store: MetadataStore, segments_each: int) -> None:
    """Compares the same lookups in memory and in PostgreSQL, with all entries warm."""
    cached, end = CachedStore(store), segments_each * RECORDS
    chance = random.Random(5)
    asked = [(f"t{chance.randrange(10)}", chance.randrange(10), chance.randrange(end)) for _ in range(5_000)]

    def questions(of: MetadataStore) -> dict[str, Ask]:
        return {
            "cached_get_topic_speedup": lambda n: of.get_topic(asked[n][0]),
            "cached_get_partition_speedup": lambda n: of.get_partition(asked[n][0], asked[n][1]),
            "index_speedup_vs_store": lambda n: of.find_segment_for_offset(*asked[n]),
        }

    direct, memory = questions(store), questions(cached)
    for name, ask in memory.items():
        for number in range(len(asked)):
            assert await ask(number) is not None
        slow, fast = [], []
        for start in range(0, 5_000, report.pick(250, 500)):
            slow.append(await _each(direct[name], range(start, start + 50)))
            fast.append(await _each(ask, range(start, start + 250)))
        report.add(
            name,
            median(slow) / median(fast),
            f"one call on PostgreSQL {median(slow) * 1e6:,.0f} us, over the same through a warm CachedStore "
            f"{median(fast) * 1e6:.2f} us (medians of rounds that alternate)",
            at_least=100,
        )


async def _each(ask: Ask, numbers: range) -> float:
    started = perf_counter()
    for number in numbers:
        await ask(number)
    return (perf_counter() - started) / len(numbers)


async def zipf_hit_rate(report: Report, server: EmbeddedPostgres) -> None:
    url, store = await new_registry(server, "zipf")
    fill_topics(url, ZIPF_TOPICS, 1)
    exponent = _exponent()
    weights = list(accumulate(rank**-exponent for rank in range(1, ZIPF_TOPICS + 1)))
    drawn = random.Random(11).choices(range(ZIPF_TOPICS), cum_weights=weights, k=ZIPF_READS)
    cached = CachedStore(store)
    before = _scans(url)
    for number in drawn:
        assert await cached.get_topic(f"t{number}") is not None
    counted = cached.topic_hit_rate
    await cached.close()
    queries = _settled(url) - before
    report.add(
        "zipf_hit_rate",
        1 - queries / ZIPF_READS,
        f"{ZIPF_READS:,} get_topic, Zipf with exponent {exponent:.2f} over 10,000 topics (a tenth of them gets nine "
        f"tenths of the reads), default CachePolicy, cold at the start: {queries:,} reached PostgreSQL, which counts "
        f"scans of the table itself (the cache says {counted:.3f}; {len(set(drawn)):,} topics were asked for)",
        at_least=0.9,
    )


def _exponent() -> float:
    """Returns the exponent with which the most popular tenth gets nine tenths of the reads."""
    low, high = 0.5, 3.0
    for _ in range(30):
        middle = (low + high) / 2
        weights = [rank**-middle for rank in range(1, ZIPF_TOPICS + 1)]
        if sum(weights[: int(ZIPF_TOPICS * HOT_SHARE)]) < HOT_READS * sum(weights):
            low = middle
        else:
            high = middle
    return high


def _scans(url: str) -> int:
    with psycopg.connect(url) as connection:
        answer = connection.execute(
            "SELECT seq_scan + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = 'topics'"
        ).fetchone()
        assert answer is not None
        return int(answer[0])


def _settled(url: str) -> int:
    """A backend reports its counts when it ends at the latest; the pool has just been closed."""
    seen = -1
    while seen != (now := _scans(url)):
        seen = now
        sleep(0.5)
    return now
