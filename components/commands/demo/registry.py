"""The registry at work: creates topics, writes segments in bulk, finds offsets, in the database and in the cache."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter

from components.commands.demo.stage import Stage
from registry.cache.store import CachedStore
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.inputs import SegmentDraft
from registry.migrate import migrate

TOPICS, PARTITIONS = 100, 10
BATCH = 10_000
TOGETHER = 100  # partitions that share an object, hence a batch
RECORDS = 500  # in a segment
LOOKUPS, CACHED_LOOKUPS = 2_000, 10_000
HOT_SHARE, HOT_READS = 0.1, 0.9  # a tenth of the topics gets nine tenths of the reads

_EACH_TURN = BATCH // TOGETHER * RECORDS  # offsets that a batch adds to each of its partitions
_TURN = TOPICS * PARTITIONS // TOGETHER  # batches until every partition had one

Question = tuple[str, int, int]
"""A topic, a partition and an offset in it."""


@dataclass(frozen=True)
class RegistryOutcome:
    topics: int
    segments: int
    seconds: float
    lookups_per_s: float
    cached_per_s: float
    topic_hit_rate: float
    partition_hit_rate: float
    index_hit_rate: float

    def cells(self) -> dict[str, str]:
        return {
            "topics, partitions": f"{self.topics}, {self.topics * PARTITIONS:,}",
            "segments written": f"{self.segments:,}",
            "segments/s": f"{self.segments / self.seconds:,.0f}",
            "offsets found/s, in the database": f"{self.lookups_per_s:,.0f}",
            "offsets found/s, in the warm cache": f"{self.cached_per_s:,.0f}",
            "hit rate of topics, from cold": f"{self.topic_hit_rate:.1%}",
            "hit rate of partitions, from cold": f"{self.partition_hit_rate:.1%}",
            "hit rate of segments, from cold": f"{self.index_hit_rate:.1%}",
        }


async def show(name: str, url: str, segments: int, stage: Stage) -> RegistryOutcome:
    """Runs this part on one backend. ``segments`` is rounded up so that all partitions get the same number."""
    await asyncio.to_thread(migrate, url)
    store = CachedStore(await open_store(url))
    try:
        return await _play(name, store, segments, stage)
    finally:
        await store.close()


async def _play(name: str, store: CachedStore, segments: int, stage: Stage) -> RegistryOutcome:
    topics = [f"topic-{number:03}" for number in range(TOPICS)]
    for topic in topics:
        await store.create_topic(topic, PARTITIONS, config={"codec": "lz4"})
    batches = -(-segments // (BATCH * _TURN)) * _TURN
    stage.say(f"{name}: {TOPICS} topics with {PARTITIONS} partitions each; writing {batches * BATCH:,} segments")
    seconds = await _write(store, topics, batches, f"{name}: segments", stage)
    direct = await _timed(store.inner, _questions(topics, batches, LOOKUPS))
    stage.say(f"{name}: found {LOOKUPS:,} offsets in the database, {direct:,.0f}/s; now through the cache")
    questions = _questions(topics, batches, CACHED_LOOKUPS)
    store.reset_counts()
    await _timed(store, questions, also=_look_around(store))
    counts, topic_rate, partition_rate = store.counts["segments"], store.topic_hit_rate, store.partition_hit_rate
    cached = await _timed(store, questions)
    return RegistryOutcome(
        TOPICS, batches * BATCH, seconds, direct, cached,
        topic_rate, partition_rate, counts.hits / (counts.hits + counts.misses),
    )  # fmt: skip


async def _write(store: MetadataStore, topics: list[str], batches: int, what: str, stage: Stage) -> float:
    """Every batch is one object that holds segments of many partitions, as the segment store writes them."""
    partitions = [(topic, number) for topic in topics for number in range(PARTITIONS)]
    groups = [partitions[start : start + TOGETHER] for start in range(0, len(partitions), TOGETHER)]
    writing = 0.0
    with stage.working(what, batches * BATCH) as advance:
        for batch in range(batches):
            turn, group = divmod(batch, len(groups))
            first, last = turn * _EACH_TURN, (turn + 1) * _EACH_TURN
            drafts = [
                SegmentDraft(topic, number, base, base + RECORDS - 1, RECORDS, 65_536, "lake", f"objects/{batch:06}")
                for topic, number in groups[group]
                for base in range(first, last, RECORDS)
            ]
            started = perf_counter()
            await store.add_segments(drafts)
            writing += perf_counter() - started
            advance(len(drafts))
    return writing


def _questions(topics: list[str], batches: int, count: int) -> list[Question]:
    """Returns random offsets, most of them in a tenth of the topics."""
    chance = random.Random(7)
    end = batches // _TURN * _EACH_TURN
    hot = max(1, int(len(topics) * HOT_SHARE))
    asked: list[Question] = []
    for _ in range(count):
        topic = topics[chance.randrange(hot) if chance.random() < HOT_READS else chance.randrange(len(topics))]
        asked.append((topic, chance.randrange(PARTITIONS), chance.randrange(end)))
    return asked


async def _timed(
    store: MetadataStore, questions: list[Question], also: Callable[[str, int], Awaitable[None]] | None = None
) -> float:
    """Returns offsets found per second. Raises if one is not found."""
    started = perf_counter()
    for topic, number, offset in questions:
        if also is not None:
            await also(topic, number)
        segment = await store.find_segment_for_offset(topic, number, offset)
        if segment is None or not segment.base_offset <= offset <= segment.end_offset:
            raise AssertionError(f"offset {offset} of {topic}/{number} was written but not found: {segment}")
    return len(questions) / (perf_counter() - started)


def _look_around(store: MetadataStore) -> Callable[[str, int], Awaitable[None]]:
    """Reads what a consumer also needs."""

    async def look(topic: str, number: int) -> None:
        await store.get_topic(topic)
        await store.get_partition(topic, number)

    return look
