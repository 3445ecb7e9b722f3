"""Agents that are killed or paused, each in a process of its own, forked from one that has all modules loaded.

``python -m tests.faults.crash_agents`` with an `Order` on stdin. An agent shares the partitions, appends to them,
merges and trims, and is a member of a consumer group that reads them. It journals what it is about to append, what was
acknowledged, and what it has read. The successor of a dead agent repeats unacknowledged appends under the same append
ids: so in the end the fate of every record is known.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.sources.factory import open_live_source
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import TailSettings
from astha.subscribers import ComponentContext, LakeSettings
from components.lib.lake.storage.locations import canonical, join
from components.lib.streams.agents import AgentSettings, LeaseAgent
from components.lib.streams.errors import AppendFailed, AppendUnknown, NotLeader
from components.lib.streams.feed_updater import FeedUpdater
from components.lib.streams.format import NewRecord
from components.lib.streams.group_consumer import GroupConsumer
from components.lib.streams.offsets import GroupOffsets
from components.lib.streams.read_context import ReadContext
from components.lib.streams.writer import AppendId, SegmentWriter, WriterSettings
from components.segment_store.maintenance.merge_policy import MergePolicy
from components.segment_store.maintenance.merging import Merger
from components.segment_store.maintenance.retention import TopicRetention
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import StoreSettings
from registry.errors import Unavailable

TOPIC, PARTITIONS = "crashes", 4
TAIL, SHARED = "tail", "shared"  # consumer groups: of the test's own consumer, and of the agents
PRODUCERS = 2  # per agent
LEASE_S = 1.0
PAUSE_S = 1.5 * LEASE_S
LONGEST_LIFE = 40  # steps
LONGEST_DELAY_S = 0.02
START_MS = 1_700_000_000_000

_AGENT = AgentSettings(lease_s=LEASE_S, renew_every_s=LEASE_S / 4, topics=[TOPIC], group="crashes", drain_timeout_s=1.0)
_WRITER = WriterSettings(block_bytes=400, window_s=0.02, preallocated_names=8, renew_every_s=1.0)
_AGAIN = (AppendFailed, AppendUnknown, NotLeader, Unavailable)


class Order(msgspec.Struct):
    """The test's order to the processes. `lake` has the values of `LakeSettings`, secrets included."""

    url: str
    lake: dict[str, object]
    directory: str
    seed: str
    agents: int
    disturbances: int  # at least
    seconds: float  # at least


class Note(msgspec.Struct, array_like=True):
    """An append that is about to be made, or with a base offset one that was acknowledged."""

    producer: str
    partition: int
    sequence: int
    count: int
    base: int | None = None

    def records(self) -> list[NewRecord]:
        """The records are determined by producer, partition and sequence."""
        numbers = range(self.sequence, self.sequence + self.count)
        return [
            NewRecord(
                b"%s/%d/%d" % (self.producer.encode(), self.partition, number) + b"." * (number * 7 % 50),
                None if number % 3 else self.producer.encode(), (("n", b"%d" % number),) if number % 4 == 0 else (),
                START_MS + number,
            )
            for number in numbers
        ]  # fmt: skip


class Taken(msgspec.Struct, array_like=True):
    """Records ``first..end-1`` that a member of the group has read."""

    partition: int
    first: int
    end: int


class Journal:
    """The journal of one agent and its successors. Each note is one write, so that none is torn."""

    def __init__(self, path: Path) -> None:
        self.pending: dict[tuple[str, int], Note] = {}
        self._next: dict[tuple[str, int], int] = {}
        for note in read_updater_state(path):
            self._take(note)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def next(self, producer: str, partition: int, count: int) -> Note:
        """Returns the producer's unacknowledged append to the partition, else a new one."""
        key = (producer, partition)
        if key not in self.pending:
            self.write(Note(producer, partition, self._next.get(key, 0), count))
        return self.pending[key]

    def write(self, note: Note) -> None:
        os.write(self._file, msgspec.json.encode(note) + b"\n")
        self._take(note)

    def _take(self, note: Note) -> None:
        key = (note.producer, note.partition)
        if note.base is None:
            self.pending[key] = note
        else:
            del self.pending[key]
            self._next[key] = note.sequence + note.count


class ReadJournal:
    """The journal of what members have read, written before they commit it."""

    def __init__(self, order: Order, name: str) -> None:
        self._file = os.open(Path(order.directory, f"{name}.taken"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    async def read(self, member: GroupConsumer, most: int, wait_s: float) -> bool:
        polled = await member.poll(max_records=most, wait_s=wait_s)
        if polled is not None:
            taken = Taken(polled.partition_id, polled.records.batches[0].first_offset, polled.records.next_offset)
            os.write(self._file, msgspec.json.encode(taken) + b"\n")
        return polled is not None


def read_taken(path: Path) -> list[Taken]:
    return [msgspec.json.decode(line, type=Taken) for line in path.read_bytes().splitlines()]


def read_updater_state(path: Path) -> Iterator[Note]:
    if path.exists():
        for line in path.read_bytes().splitlines():
            yield msgspec.json.decode(line, type=Note)


def component_context(order: Order, store: MetadataStore) -> ComponentContext:
    return ComponentContext(store, SystemLoopClock(), SecretStr(order.url), LakeSettings.model_validate(order.lake))


def following(order: Order, read_context: ReadContext) -> FeedUpdater:
    clock = SystemLoopClock()
    live_source = open_live_source(order.url, PostgresSourceSettings(), TailSettings(), clock)
    return FeedUpdater(live_source, read_context.change_feed, clock)


async def drain(order: Order) -> None:
    """Runs the last member, which reads what the others have not committed."""
    store = await open_store(order.url)
    read_context = ReadContext(component_context(order, store))
    journal = ReadJournal(order, "last")
    stop_offsets = {row.partition_id: row.high_watermark for row in await store.list_partitions(TOPIC)}
    async with (
        following(order, read_context),
        GroupConsumer(read_context.prefetcher, SHARED, TOPIC, stop_offsets=stop_offsets, lease_s=LEASE_S) as member,
    ):
        while not await member.finished():
            await journal.read(member, 100, 0.1)
    await read_context.close()
    await store.close()


class Life:
    """One process. Reports its steps, so that it can be killed after any of them, however slow the machine is."""

    def __init__(self, order: Order, slot: int, incarnation: int, steps: int) -> None:
        self._order, self._slot = order, slot
        self._name = f"{order.seed}/{slot}/{incarnation}"
        self._steps = steps
        self._journal = Journal(Path(order.directory, f"{slot}.notes"))

    async def live(self) -> None:
        store = await open_store(self._order.url, settings=StoreSettings(busy_timeout_s=60))
        context = component_context(self._order, store)
        async with LeaseAgent(store, context.clock, _AGENT) as agent, SegmentWriter(context, agent, _WRITER) as writer:
            producing = (self._produce(writer, f"{self._slot}-{number}") for number in range(PRODUCERS))
            await asyncio.gather(self._tidy(context), self._consume(context), *producing)

    async def settle(self) -> None:
        """Repeats appends until all are acknowledged."""
        store = await open_store(self._order.url, settings=StoreSettings(busy_timeout_s=60))
        context = component_context(self._order, store)
        async with LeaseAgent(store, context.clock) as agent, SegmentWriter(context, agent, _WRITER) as writer:
            while self._journal.pending:
                for producer, partition in list(self._journal.pending):
                    try:
                        await self._append(writer, producer, partition, 0)
                    except _AGAIN:
                        await asyncio.sleep(0.1)
        await store.close()

    async def _produce(self, writer: SegmentWriter, producer: str) -> None:
        chance = random.Random(f"{self._name}/{producer}")
        while True:
            try:
                await self._append(writer, producer, chance.randrange(PARTITIONS), chance.choice((1, 3, 20)))
            except _AGAIN:
                await asyncio.sleep(chance.random() * 0.05)

    async def _append(self, writer: SegmentWriter, producer: str, partition: int, count: int) -> None:
        note = self._journal.next(producer, partition, count)
        self._step()
        appended = await writer.append(TOPIC, partition, note.records(), append_id=AppendId(producer, note.sequence))
        self._journal.write(msgspec.structs.replace(note, base=appended.base_offset))
        self._step()

    async def _consume(self, context: ComponentContext) -> None:
        chance = random.Random(f"{self._name}/consume")
        read_context = ReadContext(context)
        journal = ReadJournal(self._order, str(self._slot))
        async with (
            following(self._order, read_context),
            GroupConsumer(read_context.prefetcher, SHARED, TOPIC, lease_s=LEASE_S) as member,
        ):
            while True:
                if await journal.read(member, chance.choice((3, 50)), 0.5):
                    self._step()
                if chance.random() < 0.5:
                    await member.commit()

    async def _tidy(self, context: ComponentContext) -> None:
        chance = random.Random(f"{self._name}/tidy")
        read_context = ReadContext(context)
        read_context.change_feed.disconnect()
        location = join(canonical(context.lake.warehouse), "streams")
        policy = MergePolicy(min_segments=3, min_age_ms=0)
        merger = Merger(context.store, read_context.objects, read_context.cache, context.clock, location, policy)
        retention = TopicRetention(context.store, context.clock, 3)
        while True:
            await asyncio.sleep(chance.random() * 0.5)
            with suppress(Unavailable):
                if chance.random() < 0.7:
                    await merger.merge({(TOPIC, partition): 0 for partition in range(PARTITIONS)})
                else:
                    partition = chance.randrange(PARTITIONS)
                    groups = GroupOffsets(context.store)
                    read = [
                        (await groups.resume_offsets(group, TOPIC, [partition]))[partition] for group in (TAIL, SHARED)
                    ]
                    await retention.delete_before(TOPIC, partition, chance.randint(0, min(read)))
            self._step()

    def _step(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full
            os.write(self._steps, b".")


class Child:
    def __init__(self, order: Order, slot: int, incarnation: int = 0) -> None:
        self.slot, self.incarnation = slot, incarnation
        self.paused_until: float | None = None
        self.step_pipe, steps = os.pipe()
        os.set_blocking(self.step_pipe, False)
        os.set_blocking(steps, False)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                asyncio.run(Life(order, slot, incarnation, steps).live())
            finally:
                os._exit(1)  # it should have been killed
        os.close(steps)

    def pause(self, until: float) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.paused_until = until

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.paused_until = None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.step_pipe)
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"agent {self.slot}, life {self.incarnation}, ended unexpectedly")


class AgentProcesses:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._chance = random.Random(order.seed)
        self._children = {slot: Child(order, slot) for slot in range(order.agents)}

    def run(self) -> None:
        end = time.monotonic() + self._order.seconds
        disturbances = 0
        while disturbances < self._order.disturbances or time.monotonic() < end:
            awake = [child for child in self._children.values() if child.paused_until is None]
            child = self._chance.choice(awake)
            self._watch(child, self._chance.randint(1, LONGEST_LIFE))
            time.sleep(self._chance.random() * LONGEST_DELAY_S)  # so that it is hit in the middle of an operation
            if self._chance.random() < 0.3 and len(awake) > 1:
                child.pause(time.monotonic() + PAUSE_S)
            else:
                self._replace(child)
            disturbances += 1
        for child in self._children.values():
            child.kill()
        for slot in self._children:
            asyncio.run(Life(self._order, slot, -1, os.open(os.devnull, os.O_WRONLY)).settle())
        asyncio.run(drain(self._order))

    def _replace(self, child: Child) -> None:
        child.kill()
        self._children[child.slot] = Child(self._order, child.slot, child.incarnation + 1)

    def _watch(self, child: Child, steps: int) -> None:
        """Waits for so many further steps of it. Paused agents are resumed or killed when their pause is over."""
        with suppress(BlockingIOError):
            while os.read(child.step_pipe, 1 << 16):
                continue
        while steps > 0:
            paused = [other for other in self._children.values() if other.paused_until is not None]
            for other in paused:
                if time.monotonic() >= (other.paused_until or 0):
                    if self._chance.random() < 0.2:
                        self._replace(other)
                    else:
                        other.resume()
            ready, _, _ = select.select([child.step_pipe], [], [], 0.05)
            if ready:
                made = os.read(child.step_pipe, steps)
                if not made:
                    raise SystemExit(f"agent {child.slot}, life {child.incarnation}, ended unexpectedly")
                steps -= len(made)


if __name__ == "__main__":
    AgentProcesses(msgspec.json.decode(sys.stdin.buffer.read(), type=Order)).run()
