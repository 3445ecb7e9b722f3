from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from registry.cache.segment_index import IndexPolicy
from registry.cache.store import CachedStore, MetadataCachePolicy
from registry.contract import MetadataStore
from registry.errors import NotFound, Unavailable
from registry.inputs import SegmentDraft
from registry.json_text import JsonValue, to_json_text
from registry.models import Partition, Topic
from registry.position import Position
from tests.doubles.clock import ManualClock
from tests.doubles.memory_store import Gate, MemoryStore


class Harness:
    """A store with topics ``a`` (two partitions) and ``b`` (one), and a cache that gets its events from here."""

    def __init__(self, policy: MetadataCachePolicy | None = None) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.cache = CachedStore(self.store, policy, self.clock)
        self._delivered = 0

    async def start(self) -> Harness:
        await self.store.create_topic("a", 2)
        await self.store.create_topic("b", 1)
        self._delivered = len(self.store.changes)
        self.cache.resume(await self.store.position())
        self.store.calls.clear()
        return self

    def deliver(self) -> None:
        """Delivers all events so far."""
        self.cache.invalidate_transaction(self.store.changes[self._delivered :])
        self._delivered = len(self.store.changes)

    @property
    def queries(self) -> int:
        return self.store.calls.total()


async def new_harness(policy: MetadataCachePolicy | None = None) -> Harness:
    return await Harness(policy).start()


def test_a_cached_store_is_a_store() -> None:
    store: MetadataStore = CachedStore(MemoryStore())
    assert store is not None


async def test_the_second_read_comes_from_memory() -> None:
    it = await new_harness()
    for _ in range(3):
        assert await it.cache.get_topic("a") == it.store.state.topics["a"]
        assert await it.cache.get_partition("a", 1) == it.store.state.partitions["a", 1]
        assert [row.name for row in await it.cache.list_topics()] == ["a", "b"]
        assert [row.partition_id for row in await it.cache.list_partitions("a")] == [0, 1]
    assert it.store.calls == {"get_topic": 1, "get_partition": 1, "list_topics": 1, "list_partitions": 1}


async def test_each_caller_gets_its_own_list() -> None:
    it = await new_harness()
    for _ in range(2):
        (await it.cache.list_topics()).clear()
        (await it.cache.list_partitions("a")).clear()
    assert len(await it.cache.list_topics()) == 2
    assert len(await it.cache.list_partitions("a")) == 2


@pytest.mark.parametrize(
    ("read", "seconds"),
    [
        (lambda cache: cache.get_topic("a"), 300),
        (lambda cache: cache.get_partition("a", 0), 30),
        (lambda cache: cache.list_partitions("a"), 30),
        (lambda cache: cache.list_topics(), 30),
        (lambda cache: cache.get_topic("none"), 2),
        (lambda cache: cache.get_partition("a", 9), 2),
    ],
)
async def test_entries_expire(read: Callable[[CachedStore], Awaitable[object]], seconds: int) -> None:
    it = await new_harness()
    await read(it.cache)
    it.clock.advance(seconds * 1_000 - 1)
    await read(it.cache)
    assert it.queries == 1
    it.clock.advance(1)
    await read(it.cache)
    assert it.queries == 2


async def test_a_topic_can_have_its_own_ttl() -> None:
    it = await new_harness(MetadataCachePolicy(ttl_by_topic={"a": 1.0, "b": 0.0}))
    for _ in range(2):
        await it.cache.get_topic("a")
        await it.cache.get_partition("a", 0)
    assert it.queries == 2
    it.clock.advance(1_000)
    await it.cache.get_topic("a")
    await it.cache.get_partition("a", 0)
    assert it.queries == 4
    for _ in range(2):
        await it.cache.get_topic("b")
        await it.cache.list_partitions("b")
    assert it.queries == 8


async def test_the_least_recently_used_entry_is_evicted() -> None:
    it = await new_harness(MetadataCachePolicy(topics=2, partitions=2))
    await it.cache.get_topic("a")
    await it.cache.get_topic("b")
    await it.cache.get_topic("a")
    await it.cache.get_topic("c")
    await it.cache.get_topic("a")
    assert it.store.calls["get_topic"] == 3
    assert it.cache.counts["topics"].evictions == 1
    for partition_id in (0, 1, 2, 0):
        await it.cache.get_partition("a", partition_id)
    assert it.store.calls["get_partition"] == 4
    assert it.cache.counts["partitions"].evictions == 2


async def test_hit_rates_and_counters() -> None:
    it = await new_harness()
    cache = it.cache
    assert (cache.topic_hit_rate, cache.partition_hit_rate, cache.topic_list_hit_rate) == (0.0, 0.0, 0.0)
    for _ in range(4):
        await cache.get_topic("a")
        await cache.get_partition("a", 0)
        await cache.list_topics()
    assert (cache.topic_hit_rate, cache.partition_hit_rate, cache.topic_list_hit_rate) == (0.75, 0.75, 0.75)
    assert (cache.counts["topics"].hits, cache.counts["topics"].misses) == (3, 1)
    cache.reset_counts()
    assert cache.topic_hit_rate == 0.0
    assert cache.counts["partitions"].misses == 0
    await cache.get_topic("a")
    assert cache.topic_hit_rate == 1.0


async def test_clear_drops_everything() -> None:
    it = await new_harness()
    await it.cache.warm()
    it.cache.clear()
    it.store.calls.clear()
    await it.cache.get_topic("a")
    await it.cache.get_partition("a", 0)
    await it.cache.list_topics()
    await it.cache.list_partitions("a")
    assert it.queries == 4


async def test_warming_caches_topics_and_partitions_without_counting() -> None:
    it = await new_harness()
    await it.cache.warm()
    assert it.cache.counts["partitions"].misses == 0
    it.store.calls.clear()
    for topic in ("a", "b"):
        await it.cache.get_topic(topic)
        await it.cache.get_partition(topic, 0)
        await it.cache.list_partitions(topic)
    await it.cache.list_topics()
    assert it.queries == 0


async def test_warming_stays_within_the_limits() -> None:
    it = await new_harness(MetadataCachePolicy(partitions=2))
    await it.cache.warm()
    assert it.store.calls["list_partitions"] == 1
    it = await new_harness()
    await it.cache.warm(topics=1)
    assert it.store.calls["list_partitions"] == 1


async def test_concurrent_readers_share_one_fetch() -> None:
    it = await new_harness()
    await asyncio.gather(*(it.cache.get_topic("a") for _ in range(50)))
    await asyncio.gather(*(it.cache.get_partition("a", 0) for _ in range(50)))
    await asyncio.gather(*(it.cache.list_topics() for _ in range(50)))
    await asyncio.gather(*(it.cache.list_partitions("b") for _ in range(50)))
    assert it.queries == 4


async def test_a_cancelled_first_reader_does_not_cancel_the_fetch() -> None:
    it = await new_harness()
    gate = it.store.hold("get_topic")
    first = asyncio.create_task(it.cache.get_topic("a"))
    await gate.reached()
    others = [asyncio.create_task(it.cache.get_topic("a")) for _ in range(3)]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.open()
    assert await asyncio.gather(*others) == [it.store.state.topics["a"]] * 3
    assert it.queries == 1


async def test_an_error_reaches_all_waiting_readers_and_is_not_cached() -> None:
    it = await new_harness()
    it.store.failures["get_topic"] = Unavailable("away")
    answers = await asyncio.gather(*(it.cache.get_topic("a") for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable] * 3
    it.store.failures.clear()
    assert await it.cache.get_topic("a") is not None
    with pytest.raises(NotFound):
        await it.cache.list_partitions("none")


async def change_config(store: MetadataStore) -> None:
    await store.update_topic_config("a", {"x": 1})


async def move_watermark(store: MetadataStore) -> None:
    await store.update_high_watermark("a", 0, 7)


async def add_segment(store: MetadataStore) -> None:
    await store.add_segment(SegmentDraft("a", 0, 0, 9, 10, 100, "bucket", "key"))


async def add_segments(store: MetadataStore) -> None:
    await store.add_segments([SegmentDraft("a", 0, 0, 9, 10, 100, "bucket", "key")])


async def delete(store: MetadataStore) -> None:
    await store.delete_topic("a")


async def recreate(store: MetadataStore) -> None:
    await store.create_topic("none", 3)


async def everything(cache: CachedStore) -> list[object]:
    return [
        await cache.get_topic("a"),
        await cache.get_topic("none"),
        await cache.get_partition("a", 0),
        await cache.get_partition("a", 1),
        await cache.get_partition("none", 0),
        await cache.list_topics(),
        await cache.list_partitions("b"),
        await cache.list_partitions("a") if await cache.get_topic("a") else None,
    ]


WRITES = [change_config, move_watermark, add_segment, add_segments, delete, recreate]


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_through_the_cache_is_seen_at_once(
    write: Callable[[MetadataStore], Awaitable[None]],
) -> None:
    it = await new_harness()
    before = await everything(it.cache)
    await write(it.cache)
    after = await everything(it.cache)
    assert after != before
    assert after == await everything(CachedStore(it.store))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("failure", [Unavailable("no answer in time"), asyncio.CancelledError()])
async def test_a_write_with_unknown_outcome_invalidates(
    write: Callable[[MetadataStore], Awaitable[None]], failure: BaseException
) -> None:
    it = await new_harness()
    await everything(it.cache)
    for verb in (
        "update_topic_config",
        "update_high_watermark",
        "add_segments",
        "delete_topic",
        "create_topic",
    ):
        it.store.failures[verb] = failure  # after it was committed
    with pytest.raises(type(failure)):
        await write(it.cache)
    it.store.failures.clear()
    assert await everything(it.cache) == await everything(CachedStore(it.store))


@pytest.mark.parametrize("write", WRITES)
async def test_an_event_of_another_writer_is_seen_at_once(
    write: Callable[[MetadataStore], Awaitable[None]],
) -> None:
    it = await new_harness()
    before = await everything(it.cache)
    await write(it.store)
    assert await everything(it.cache) == before
    it.deliver()
    assert await everything(it.cache) == await everything(CachedStore(it.store))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("through_the_cache", [True, False])
async def test_a_fetch_that_a_change_overtakes_is_not_cached(
    write: Callable[[MetadataStore], Awaitable[None]], through_the_cache: bool
) -> None:
    it = await new_harness()
    verbs = ("get_topic", "get_partition", "list_topics", "list_partitions")
    gates = [it.store.hold(verb) for verb in verbs]
    early = [
        asyncio.create_task(it.cache.get_topic("a")),
        asyncio.create_task(it.cache.get_topic("none")),
        asyncio.create_task(it.cache.get_partition("a", 0)),
        asyncio.create_task(it.cache.get_partition("none", 0)),
        asyncio.create_task(it.cache.list_topics()),
        asyncio.create_task(it.cache.list_partitions("a")),
    ]
    for gate, callers in zip(gates, (2, 2, 1, 1), strict=True):
        await gate.reached(callers)
    await write(it.cache if through_the_cache else it.store)
    if not through_the_cache:
        it.deliver()
    for verb in verbs:
        it.store.release(verb)
    late = await everything(it.cache)
    assert late == await everything(CachedStore(it.store))
    await asyncio.gather(*early, return_exceptions=True)  # NotFound: the topic was deleted under way
    assert await everything(it.cache) == late


async def test_a_fetch_during_a_write_through_the_cache_is_not_cached() -> None:
    class Slow(MemoryStore):
        async def update_topic_config(
            self, name: str, config: Mapping[str, JsonValue], *, retention_ms: int | None = None
        ) -> Topic:
            await commits.passed()
            return await super().update_topic_config(name, config, retention_ms=retention_ms)

    commits = Gate()
    store = Slow()
    await store.create_topic("a", 1)
    cache = CachedStore(store)
    writing = asyncio.create_task(cache.update_topic_config("a", {"x": 1}))
    await commits.reached()
    assert await cache.get_topic("a") == store.state.topics["a"]
    commits.open()
    written = await writing
    assert await cache.get_topic("a") == written


async def test_a_late_event_does_not_replace_a_row_read_for_a_later_position() -> None:
    it = await new_harness()
    old = it.store.state.topics["a"]
    new = Topic("a", 2, None, to_json_text({"x": 1}), old.created_at, old.updated_at)
    late = it.store.commit((old, new))
    it.store.commit((new, old))  # and back, to the very same row
    position = await it.store.position()
    assert await it.cache.get_topic("a", at_least=position) == old
    it.cache.invalidate_transaction(late)
    assert await it.cache.get_topic("a", at_least=position) == old


async def test_a_partition_that_is_added_appears_in_the_list() -> None:
    it = await new_harness()
    await it.cache.list_partitions("a")
    it.store.commit((None, Partition("a", 2, 0, 9, 9)))
    it.deliver()
    assert len(await it.cache.list_partitions("a")) == 3


async def test_a_busy_partition_stays_cached_by_its_own_events() -> None:
    it = await new_harness()
    await it.cache.get_partition("a", 0)
    await it.cache.list_partitions("b")
    it.store.calls.clear()
    for offset in range(1, 50):
        it.store.commit(_moved(it.store, "a", 0, offset))
        it.store.commit(_moved(it.store, "b", 0, offset))
        it.deliver()
        assert await it.cache.get_partition("a", 0) == it.store.state.partitions["a", 0]
        assert await it.cache.list_partitions("b") == [it.store.state.partitions["b", 0]]
    assert it.queries == 0


def _moved(store: MemoryStore, topic: str, partition_id: int, offset: int) -> tuple[Partition, Partition]:
    old = store.state.partitions[topic, partition_id]
    return old, Partition(topic, partition_id, offset, old.created_at, offset)


async def test_an_event_older_than_the_cached_row_does_not_replace_it() -> None:
    it = await new_harness()
    await it.store.update_high_watermark("a", 0, 5)
    await it.store.update_high_watermark("a", 0, 6)
    assert await it.cache.get_partition("a", 0) == it.store.state.partitions["a", 0]
    for change in it.store.changes[-2:]:
        it.cache.invalidate(change)
        assert await it.cache.get_partition("a", 0) == it.store.state.partitions["a", 0]


async def test_list_and_single_reads_of_partitions_agree() -> None:
    it = await new_harness()
    await it.cache.list_partitions("a")
    await it.store.update_high_watermark("a", 0, 5)
    await it.cache.update_high_watermark("a", 1, 3)
    assert await it.cache.get_partition("a", 1) == it.store.state.partitions["a", 1]
    listed = await it.cache.list_partitions("a")
    assert listed == [await it.cache.get_partition("a", n) for n in (0, 1)]


async def test_a_list_does_not_overwrite_the_result_of_a_later_fetch() -> None:
    it = await new_harness()
    gate = it.store.hold("list_partitions")
    listing = asyncio.create_task(it.cache.list_partitions("a"))
    await gate.reached()
    await it.store.update_high_watermark("a", 0, 5)  # its event is late
    newer = await it.cache.get_partition("a", 0)
    gate.open()
    await listing
    assert await it.cache.get_partition("a", 0) == newer


@pytest.mark.parametrize("write", [change_config, move_watermark, delete, recreate])
async def test_a_read_that_cannot_see_an_applied_event_yet_is_corrected_by_it(
    write: Callable[[MetadataStore], Awaitable[None]],
) -> None:
    """PostgreSQL sends a commit to the stream before it shows it to other sessions."""
    it = await new_harness()
    it.store.visible = len(it.store.states) - 1
    await write(it.store)
    it.deliver()
    truth = it.store.state
    assert await it.cache.get_topic("a") == truth.topics.get("a")
    assert await it.cache.get_topic("none") == truth.topics.get("none")
    assert await it.cache.get_partition("a", 0) == truth.partitions.get(("a", 0))
    assert await it.cache.get_partition("none", 2) == truth.partitions.get(("none", 2))
    assert await it.cache.list_topics() == sorted(truth.topics.values(), key=lambda row: row.name)
    if "a" in truth.topics:
        assert await it.cache.list_partitions("a") == [truth.partitions["a", n] for n in (0, 1)]
    it.store.visible = None
    assert await everything(it.cache) == await everything(CachedStore(it.store))


async def test_at_least_reads_through_until_the_events_have_caught_up() -> None:
    it = await new_harness()
    await everything(it.cache)
    await change_config(it.store)
    await move_watermark(it.store)
    position = await it.store.position()
    truth = it.store.state
    it.store.calls.clear()
    for _ in range(2):
        assert await it.cache.get_topic("a", at_least=position) == truth.topics["a"]
        assert await it.cache.get_partition("a", 0, at_least=position) == truth.partitions["a", 0]
        assert await it.cache.list_topics(at_least=position) == list(truth.topics.values())
        assert await it.cache.list_partitions("a", at_least=position) == [truth.partitions["a", n] for n in (0, 1)]
    assert it.queries == 4  # filled for that position
    it.cache.advance(position)
    await it.cache.get_topic("b", at_least=position)
    assert it.queries == 4


async def test_a_position_is_applied_only_when_its_whole_transaction_is() -> None:
    it = await new_harness()
    await it.cache.get_partition("a", 0)
    await it.cache.get_partition("b", 0)
    first, second = it.store.commit(_moved(it.store, "a", 0, 5), _moved(it.store, "b", 0, 5))
    it.cache.invalidate(first)
    assert await it.cache.get_partition("b", 0, at_least=first.position) == second.data
    assert it.cache.applied == first.position - 1
    it.cache.invalidate(second)
    it.cache.advance(second.position)
    assert it.cache.applied == second.position


async def test_at_least_does_not_join_an_earlier_fetch() -> None:
    it = await new_harness()
    gate = it.store.hold("get_topic")
    early = asyncio.create_task(it.cache.get_topic("a"))
    await gate.reached()
    await change_config(it.store)
    position = await it.store.position()
    late = asyncio.create_task(it.cache.get_topic("a", at_least=position))
    await gate.reached(2)
    also_late = asyncio.create_task(it.cache.get_topic("a", at_least=position))
    it.store.release("get_topic")
    assert await late == await also_late == it.store.state.topics["a"]
    assert await early != await late
    assert await it.cache.get_topic("a") == it.store.state.topics["a"]
    assert it.store.calls["get_topic"] == 2


async def test_the_start_of_the_stream_drops_earlier_entries() -> None:
    it = Harness()
    await it.store.create_topic("a", 2)
    await it.cache.get_topic("a")
    await it.store.update_topic_config("a", {"x": 1})  # an event that this cache will never be given
    it.cache.advance(await it.store.position())
    assert await it.cache.get_topic("a") == it.store.state.topics["a"]


async def test_resuming_after_a_gap_drops_everything() -> None:
    it = await new_harness()
    await everything(it.cache)
    await change_config(it.store)
    it.cache.resume(await it.store.position())
    assert await everything(it.cache) == await everything(CachedStore(it.store))


async def with_segments(it: Harness, count: int = 5) -> None:
    it.store.commit(*((None, it.store.segment("a", 0, n * 10, n * 10 + 9)) for n in range(count)))
    it.deliver()
    it.cache.clear()


async def test_segments_come_from_the_index() -> None:
    it = await new_harness()
    await with_segments(it)
    for offset in range(50):
        found = await it.cache.find_segment_for_offset("a", 0, offset)
        assert found is not None
        assert found.base_offset <= offset <= found.end_offset
    assert it.queries == 1
    assert it.cache.counts["segments"].hits == 49
    with pytest.raises(NotFound):
        await it.cache.find_segment_for_offset("a", 5, 0)


async def test_segments_deleted_through_the_cache_are_gone_at_once() -> None:
    it = await new_harness()
    await with_segments(it)
    await it.cache.find_segment_for_offset("a", 0, 0)
    assert await it.cache.delete_segments_before("a", 0, 30) == 3
    assert await it.cache.find_segment_for_offset("a", 0, 5) is None
    assert await it.cache.find_segment_for_offset("a", 0, 35) is not None


async def test_segments_deleted_by_another_are_gone_with_the_event() -> None:
    it = await new_harness()
    await with_segments(it)
    await it.cache.find_segment_for_offset("a", 0, 0)
    await it.store.delete_segments_before("a", 0, 30)
    position = await it.store.position()
    assert await it.cache.find_segment_for_offset("a", 0, 5) is not None
    assert await it.cache.find_segment_for_offset("a", 0, 5, at_least=position) is None
    it.deliver()
    assert await it.cache.find_segment_for_offset("a", 0, 15) is None
    assert await it.cache.find_segment_for_offset("a", 0, 15, at_least=position) is None


async def test_segments_expire_when_the_stream_is_silent() -> None:
    it = await new_harness(MetadataCachePolicy(segment_ttl=10, index=IndexPolicy(page=100)))
    await with_segments(it)
    await it.cache.find_segment_for_offset("a", 0, 0)
    await it.store.delete_segments_before("a", 0, 30)
    it.clock.advance(9_000)
    assert await it.cache.find_segment_for_offset("a", 0, 5) is not None
    it.clock.advance(1_000)
    assert await it.cache.find_segment_for_offset("a", 0, 5) is None


async def test_keepalives_keep_segments_cached() -> None:
    it = await new_harness(MetadataCachePolicy(segment_ttl=10))
    await with_segments(it)
    await it.cache.find_segment_for_offset("a", 0, 0)
    for _ in range(10):
        it.clock.advance(9_000)
        it.cache.advance(await it.store.position())
        await it.cache.find_segment_for_offset("a", 0, 5)
    assert it.queries == 1


async def test_deleting_a_topic_drops_its_segments() -> None:
    it = await new_harness()
    await with_segments(it)
    await it.cache.find_segment_for_offset("a", 0, 0)
    await it.store.delete_topic("a")
    it.deliver()
    assert len(it.cache.index) == 0
    with pytest.raises(NotFound):
        await it.cache.find_segment_for_offset("a", 0, 0)


async def test_loading_invalidates_before_and_after() -> None:
    class Loading(MemoryStore):
        @asynccontextmanager
        async def load(self) -> AsyncIterator[object]:  # type: ignore[override]
            await self.create_topic("a", 1)
            yield None

    store = Loading()
    cache = CachedStore(store)
    assert await cache.get_topic("a") is None
    async with cache.load():
        assert await cache.get_topic("a") is not None
    assert await cache.get_topic("a") is not None


async def test_closing_fails_waiting_readers_and_closes_the_store() -> None:
    it = await new_harness()
    gate = it.store.hold("get_topic")
    caller = asyncio.create_task(it.cache.get_topic("a"))
    await gate.reached()
    await it.cache.close()
    with pytest.raises(Unavailable):
        await caller
    assert it.store.closed


async def test_rows_of_other_tables_only_advance_the_position() -> None:
    it = await new_harness()
    await everything(it.cache)
    it.store.calls.clear()
    position = Position(await it.store.position() + 5)
    it.cache.advance(position)
    await it.cache.get_topic("a", at_least=position)
    assert it.queries == 0
    assert isinstance(await it.cache.get_topic("a"), Topic)
