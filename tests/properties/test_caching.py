"""The cache with writes by others, writes through it, late events, delayed fetches, expiry and eviction.

A read that begins after an invalidation was applied never gets anything older; nor one with ``at_least``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from hypothesis import example, given, settings
from hypothesis import strategies as st

from registry.cache.store import CachedStore, MetadataCachePolicy
from registry.errors import NotFound
from registry.json_text import JsonText, to_json_text
from registry.models import Partition, Row, Topic
from registry.position import Position
from tests.doubles.clock import ManualClock
from tests.doubles.memory_store import MemoryStore, State

Step: TypeAlias = tuple[str, int, int]
Key: TypeAlias = str | tuple[str, int]
Rows: TypeAlias = dict[Key, Row | None]

READS = ("get_topic", "get_partition", "list_topics", "list_partitions")
OTHERS = (
    "configure", "move", "recreate", "own", "lag", "deliver", "half", "hold", "settle", "expire",
    "cross", "cross",
)  # fmt: skip
TOPICS = ("a", "b")

steps = st.lists(
    st.tuples(
        st.sampled_from([*READS, *READS, *OTHERS]),
        st.integers(0, 5),
        st.integers(0, 3),
    ),
    min_size=20,  # short histories rarely fail
    max_size=60,
)


class History:
    """A registry with other writers, and a cache over it that gets events at given steps."""

    def __init__(self, policy: MetadataCachePolicy) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.cache = CachedStore(self.store, policy, self.clock)
        self.next = 0  # event to deliver
        self.lagging = 0  # writes since a read may have missed an applied event
        self.own: dict[Key, int] = {}  # position of the last write through the cache
        self.running: list[tuple[int, dict[Key, int], Callable[[State], Rows], asyncio.Task[Rows]]] = []

    async def start(self) -> None:
        for topic in TOPICS:
            await self.store.create_topic(topic, 2)
        self.next = len(self.store.changes)
        self.cache.resume(await self.store.position())

    async def step(self, verb: str, number: int, turns: int) -> None:
        if self.lagging > 3:  # the cache remembers only so many versions of a row
            await self.settle()
        if verb in READS:
            self.read(verb, number, turns)
            for _ in range(turns):
                await asyncio.sleep(0)
        elif verb == "own":
            await self.write_own(number)
        elif verb == "lag":  # a commit whose events arrive before other sessions can see it
            visible = len(self.store.states) - 1
            self.write(("configure", "move", "recreate")[turns % 3], number)
            if self.cache.policy.changes_remembered:
                self.store.visible = visible
                self.lagging = self.lagging or 1
            self.deliver(1_000)
        elif verb in ("deliver", "half"):
            self.deliver(number, half=verb == "half")
        elif verb == "hold":
            self.hold()
        elif verb == "settle":
            await self.settle()
        elif verb == "expire":
            self.clock.advance((1_000, 2_000, 31_000, 301_000)[turns])
        elif verb == "cross":
            await self.cross(READS[turns], number, turns=3)
        else:
            self.write(verb, number)

    # ---- writes -------------------------------------------------------------------------------------------

    def write(self, verb: str, number: int) -> None:
        self.store.visible = None
        self.lagging += self.lagging > 0
        name = TOPICS[number % 2]
        topic, now = self.store.state.topics.get(name), len(self.store.states)
        rows: list[tuple[Row | None, Row | None]] = []
        if topic is None:
            rows = [(None, Topic(name, 2, None, _config(now), now, now))]
            rows += [(None, Partition(name, n, 0, now, now)) for n in (0, 1)]
        elif verb == "configure":
            rows = [(topic, Topic(name, 2, None, _config(now), topic.created_at, now))]
        elif verb == "recreate":
            rows = [(self.store.state.partitions[name, n], None) for n in (0, 1)]
            rows.append((topic, None))
        else:  # both partitions in one transaction
            for n in (0, 1):
                old = self.store.state.partitions[name, n]
                rows.append((old, Partition(name, n, old.high_watermark + 1, old.created_at, now)))
        self.store.commit(*rows)

    async def write_own(self, number: int) -> None:
        """Not while a read that misses an applied event is in flight: a write drops that event."""
        if self.lagging:
            await self.settle()
        self.store.visible = None
        name = TOPICS[number % 2]
        written: list[Key] = [name]
        if name not in self.store.state.topics:
            await self.cache.create_topic(name, 2)
            written += [(name, 0), (name, 1)]
        elif number < 2:
            await self.cache.delete_topic(name)
            written += [(name, 0), (name, 1)]
        elif number < 4:
            await self.cache.update_topic_config(name, {"own": len(self.store.states)})
        else:
            await self.cache.update_high_watermark(name, 0, len(self.store.states))
            written = [(name, 0)]
        self.own |= dict.fromkeys(written, len(self.store.states) - 1)

    def deliver(self, commits: int, *, half: bool = False) -> None:
        for _ in range(commits):
            rest = self.store.changes[self.next :]
            if not rest:
                return
            whole = [change for change in rest if change.position == rest[0].position]
            if half:
                whole = whole[:1]
            for change in whole:
                self.cache.invalidate(change)
            self.next += len(whole)
            if not half:
                self.cache.advance(whole[-1].position)

    # ---- reads --------------------------------------------------------------------------------------------

    def read(self, verb: str, number: int, ask: int) -> None:
        position = Position(self.store.visible or len(self.store.states) - 1)
        at_least = position if ask == 1 else Position(position // 2) if ask == 2 else None
        floor = max(self.cache.applied, at_least or 0)
        task = asyncio.create_task(self._read(verb, number, at_least))
        self.running.append((floor, dict(self.own), _view(verb, number), task))

    async def _read(self, verb: str, number: int, at_least: Position | None) -> Rows:
        name = TOPICS[number % 2]
        if verb == "get_topic":
            return {name: await self.cache.get_topic(name, at_least=at_least)}
        if verb == "get_partition":
            return {(name, number % 3): await self.cache.get_partition(name, number % 3, at_least=at_least)}
        if verb == "list_topics":
            return {row.name: row for row in await self.cache.list_topics(at_least=at_least)}
        try:
            rows = await self.cache.list_partitions(name, at_least=at_least)
        except NotFound:
            return {}
        return {(name, row.partition_id): row for row in rows}

    async def cross(self, verb: str, number: int, turns: int) -> None:
        """A write and its event overtake a read in flight."""
        self.hold()
        self.read(verb, number, 0)
        for _ in range(turns):
            await asyncio.sleep(0)
        self.write("configure" if verb.endswith(("topic", "topics")) else "move", number)
        self.deliver(1_000)

    def hold(self) -> None:
        for verb in READS:
            if verb not in self.store.gates:
                self.store.hold(verb)

    async def settle(self) -> None:
        for verb in READS:
            if verb in self.store.gates:
                self.store.release(verb)
        for floor, own, view, task in self.running:
            answer = await task
            views = [view(state) for state in self.store.states]
            for key in set(answer).union(*views[floor:]):  # rows of a list may be of different moments
                oldest = max(floor, own.get(key, 0))
                assert answer.get(key) in [rows.get(key) for rows in views[oldest:]], f"{key}, {oldest}"
        self.running.clear()
        self.lagging = 0 if self.store.visible is None else 1


policies = st.builds(
    MetadataCachePolicy,
    topics=st.sampled_from([1, 10]),
    partitions=st.sampled_from([1, 3, 10]),
    changes_remembered=st.sampled_from([0, 100]),
)


@settings(max_examples=150, deadline=None)
@given(steps=steps, policy=policies)
@example(  # deleted by us, before the event comes that says that it was created
    steps=[("recreate", 1, 0), ("configure", 1, 0), ("own", 1, 0), ("deliver", 4, 0), ("get_topic", 1, 0)],
    policy=MetadataCachePolicy(),
)
def test_no_read_is_older_than_its_guarantee(steps: list[Step], policy: MetadataCachePolicy) -> None:
    async def history() -> None:
        it = History(policy)
        await it.start()
        for verb, number, turns in steps:
            await it.step(verb, number, turns)
        await it.settle()
        it.store.visible = None
        it.deliver(1_000)
        it.cache.advance(await it.store.position())
        for verb in READS:
            for number in range(6):
                it.read(verb, number, 0)
        assert it.cache.applied == len(it.store.states) - 1  # so only the present is good enough
        await it.settle()

    asyncio.run(history())


def _config(number: int) -> JsonText:
    return to_json_text({"n": number})


def _view(verb: str, number: int) -> Callable[[State], Rows]:
    """What the read would have returned at some moment."""
    name = TOPICS[number % 2]

    def view(state: State) -> Rows:
        if verb == "get_topic":
            return {name: state.topics.get(name)}
        if verb == "get_partition":
            return {(name, number % 3): state.partitions.get((name, number % 3))}
        if verb == "list_topics":
            return {row.name: row for row in state.topics.values()}
        return {key: row for key, row in state.partitions.items() if key[0] == name}

    return view
