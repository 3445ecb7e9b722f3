"""What partitions and segments cost the registry and every process, each by itself: the numbers behind docs/scale.md.

Sizes and counts, which a busy machine does not change, and how two times grow within one run.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from statistics import median

import psycopg

from benchmarks.registries import new_registry
from benchmarks.registry.memory import memory_figures
from benchmarks.report import Report, run
from benchmarks.segments.history import history_figures
from components.lib.streams.agents import AgentSettings, HeldLease
from components.segment_store.maintenance.merge_policy import MergePolicy, choose_runs
from registry.cache.segment_index import SegmentIndex
from registry.contract import MetadataStore
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import Fence, SegmentDraft
from registry.models import PartitionLease, Segment

TOPIC = "topic-of-average-name"
AGENT = "agent-00000000000000000000000000000000"
OWNER = "segment-writer 00000000000000000000000000000000"
BUCKET = "bucket-of-segments"
OBJECT_SEGMENTS = 50  # as a writer has them
_HOUR_MS = 3_600_000


class Registry:
    """A registry whose bytes can be counted."""

    def __init__(self, url: str, store: MetadataStore) -> None:
        self.store = store
        self._connection = psycopg.connect(url, autocommit=True)
        self._next: dict[int, int] = {}
        self._objects = 0

    def size(self, *tables: str) -> int:
        """Returns the size with indexes."""
        query = "SELECT sum(pg_total_relation_size(name::regclass))::bigint FROM unnest(%s::text[]) AS name"
        return self._number(query, [list(tables)])

    def wal(self) -> int:
        return self._number("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")

    def checkpoint(self) -> None:
        """Makes a checkpoint: the first change of a page after it logs the whole page."""
        self._connection.execute("CHECKPOINT")

    def close(self) -> None:
        self._connection.close()

    async def register(self, first: int, leases: list[PartitionLease]) -> None:
        """Registers an object with one segment of each of these partitions."""
        self._objects += 1
        key = f"lake/streams/20261116/{first:09}-{self._objects:032}.segments"
        drafts = []
        for place, lease in enumerate(leases):
            offset = self._next.get(lease.partition_id, 0)
            self._next[lease.partition_id] = offset + 1
            drafts.append(
                SegmentDraft(
                    TOPIC, lease.partition_id, offset, offset, 1, 106, BUCKET, key, place * 106, 1_800_000_000_000,
                    1_800_000_000_000,
                )
            )  # fmt: skip
        await self.store.record_intents([drafts[0].uri], purpose="segments", owner=OWNER)
        fences = [Fence(TOPIC, lease.partition_id, AGENT, lease.epoch) for lease in leases]
        await self.store.add_segments(drafts, fences=fences, intents_of=OWNER)

    def _number(self, query: str, values: list[object] | None = None) -> int:
        row = self._connection.execute(query, values).fetchone()
        assert row is not None
        return int(row[0])


async def registry_figures(report: Report, server: EmbeddedPostgres) -> None:
    url, store = await new_registry(server, "scale")
    registry = Registry(url, store)
    partitions = report.pick(20_000, 5_000)
    tables = ("partitions", "partition_leases")
    empty = registry.size(*tables)
    await store.create_topic(TOPIC, partitions)
    await store.register_agent(AGENT, "local")
    leases = await store.acquire_partition_leases([(TOPIC, n) for n in range(partitions)], AGENT, _HOUR_MS)
    what = f"rows of {partitions:,} partitions and their leases, with indexes"
    report.add("registry_bytes_per_partition", (registry.size(*tables) - empty) / partitions, what)

    rounds = report.pick(4, 2)
    empty = registry.size("segments", "segment_objects")
    for number in range(rounds):
        if number == 1:  # pages have been written in whole by the first
            before = registry.wal()
        for first in range(0, partitions, OBJECT_SEGMENTS):
            await registry.register(first, leases[first : first + OBJECT_SEGMENTS])
        report.say(f"{(number + 1) * partitions:,} segments")
    segments = rounds * partitions
    what = f"{segments:,} segments, {OBJECT_SEGMENTS} in an object, one record each"
    report.add(
        "registry_bytes_per_segment", (registry.size("segments", "segment_objects") - empty) / segments,
        f"rows of {what}, with their objects' and all indexes",
    )  # fmt: skip
    later = segments - partitions
    report.add(
        "wal_bytes_per_segment", (registry.wal() - before) / later,
        f"registering {later:,} of them, intents and watermarks included, without whole pages after a checkpoint",
    )  # fmt: skip
    before = registry.wal()
    registry.checkpoint()
    for first in range(0, partitions, OBJECT_SEGMENTS):
        await registry.register(first, leases[first : first + OBJECT_SEGMENTS])
    report.add(
        "wal_bytes_per_segment_after_checkpoint", (registry.wal() - before) / partitions,
        f"registering one segment of each of {partitions:,} partitions right after a checkpoint, whole pages included",
    )  # fmt: skip
    registry.close()
    await store.close()


async def idle_figures(report: Report, server: EmbeddedPostgres) -> None:
    """What agents write that only hold their leases: one round of heartbeats per interval."""
    agents, interval_s = 100, AgentSettings().renew_every_s
    bytes_per_s: list[float] = []
    counts = (1_000, report.pick(100_000, 20_000))
    for partitions in counts:
        url, store = await new_registry(server, f"idle_{partitions}")
        registry = Registry(url, store)
        await store.create_topic(TOPIC, partitions)
        for number in range(agents):
            await store.register_agent(f"{AGENT}-{number}", "local")
            keys = [(TOPIC, partition) for partition in range(number, partitions, agents)]
            await store.acquire_partition_leases(keys, f"{AGENT}-{number}", _HOUR_MS)
        rounds: list[int] = []
        for _ in range(6):
            before = registry.wal()
            for number in range(agents):
                await store.heartbeat(f"{AGENT}-{number}")
            rounds.append(registry.wal() - before)
        bytes_per_s.append(median(rounds) / interval_s)  # the first may write whole pages, a vacuum may disturb one
        registry.close()
        await store.close()
        report.say(f"{agents} agents hold {partitions:,} partitions")
    report.add(
        "idle_wal_bytes_per_s", bytes_per_s[1],
        f"{agents} agents that hold {counts[1]:,} partitions and send a heartbeat every {interval_s:g} s",
    )  # fmt: skip
    report.add(
        "idle_wal_growth", bytes_per_s[1] / bytes_per_s[0],
        f"the same over {agents} agents that hold {counts[0]:,} partitions: {bytes_per_s[1]:,.0f} and "
        f"{bytes_per_s[0]:,.0f} B/s", at_most=1.1,
    )  # fmt: skip


def process_figures(report: Report) -> None:
    count = 20_000
    memory = memory_figures()
    report.add("index_bytes_per_segment", memory["index_entry_bytes"], "SegmentIndex, many segments of one partition")
    report.add(
        "index_bytes_per_partition",
        _bytes_each(10_000, _indexed),
        "SegmentIndex, one segment in each: the row included",
    )
    report.add("cache_bytes_per_partition", memory["partition_entry_bytes"], "CachedStore")
    report.add("held_bytes_per_partition", _bytes_each(count, _held), "a writer's lease and next offset")


def merge_figures(report: Report) -> None:
    """Simulates one partition that gets a segment of that size at a fixed interval and is merged when due."""
    for size, what in ((106, "one record of 10 bytes"), (10_000, "10 kB")):
        appended = report.pick(100_000, 10_000)
        written, left = _merged(size, appended)
        report.add(
            f"merge_amplification_{size}", written / (size * appended),
            f"bytes written by merges for each that was appended, {appended:,} segments of {size:,} bytes ({what}); "
            f"{left} rows are left",
        )  # fmt: skip


def _merged(size: int, count: int) -> tuple[int, int]:
    policy = MergePolicy(min_age_ms=0)
    rows: list[Segment] = []
    written = 0
    for number in range(count):
        rows.append(_segment(number, number, size))
        if number % policy.min_segments:
            continue
        tail = rows[-64:]
        for run_ in choose_runs(tail, policy, now_ms=number):
            first = rows.index(run_[0], len(rows) - len(tail))
            total = sum(row.size_bytes for row in run_)
            rows[first : first + len(run_)] = [_segment(run_[0].base_offset, run_[-1].end_offset, total)]
            written += total
            break
    return written, len(rows)


def _segment(base: int, end: int, size: int, partition: int = 0) -> Segment:
    key = f"lake/streams/20261116/{partition:09}-{base:032}.segments"
    return Segment(
        partition * 1_000 + base + 1, TOPIC.encode().decode(), partition, base, end, end - base + 1, size,
        BUCKET.encode().decode(), key, partition * 106, 0,
    )  # fmt: skip


def _indexed(count: int) -> object:
    index = SegmentIndex(None)  # type: ignore[arg-type]  # never reads the store
    for number in range(count):
        index.add(_segment(0, 0, 106, number))
    return index


def _held(count: int) -> object:
    return {
        (TOPIC, number): HeldLease(
            PartitionLease(TOPIC.encode().decode(), number, AGENT, 10**12 + number, 1, 10**12), 0
        )
        for number in range(count)
    }


def _bytes_each(count: int, build: Callable[[int], object]) -> float:
    build(10)
    gc.collect()
    tracemalloc.start()
    try:
        built = build(count)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
        del built
    finally:
        tracemalloc.stop()
    return used / count


async def measure(report: Report) -> None:
    with EmbeddedPostgres(settings={"shared_buffers": "256MB", "max_wal_size": "4GB"}) as server:
        await registry_figures(report, server)
        await idle_figures(report, server)
        await history_figures(report, server)
    process_figures(report)
    merge_figures(report)


if __name__ == "__main__":
    sys.exit(run("segments_scale", measure))
