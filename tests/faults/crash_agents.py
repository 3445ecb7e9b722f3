"""Agents that are killed or paused: each in a process of its own, forked from one that has all modules loaded.

``python -m tests.faults.crash_agents`` and an order on stdin. An agent holds its share of the partitions, appends to
them, merges and trims, and is a member of a group that reads them. It writes down what it is about to append, what was
acknowledged, and what it has read. Whoever comes after a dead one repeats, under the same stamps, what had no answer:
so in the end it is known of every record whether it is there.
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
from astha.sources.factory import open_follower
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import TailSettings
from astha.subscribers import ComponentContext, LakeSettings
from components.lib.lake.storage.locations import canonical, join
from components.lib.streams.agents import Agent, AgentSettings
from components.lib.streams.errors import AppendFailed, AppendUnknown, NotLeader
from components.lib.streams.format import NewRecord
from components.lib.streams.group_consumer import Member
from components.lib.streams.offsets import Groups
from components.lib.streams.read_context import Reading
from components.lib.streams.registry_follower import Following
from components.lib.streams.writer import SegmentWriter, Stamp, WriterSettings
from components.segment_store.maintenance.merge_policy import MergePolicy
from components.segment_store.maintenance.merging import Merger
from components.segment_store.maintenance.retention import Retention
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import StoreSettings
from registry.errors import Unavailable

TOPIC, PARTITIONS = "doomed", 4
TAIL, SHARED = "tail", "shared"  # groups: of the test's own consumer, and of the agents
PRODUCERS = 2  # of each agent
LEASE_S = 1.0
PAUSE_S = 1.5 * LEASE_S
LONGEST_LIFE = 40  # steps
LONGEST_DELAY_S = 0.02
START_MS = 1_700_000_000_000

_AGENT = AgentSettings(lease_s=LEASE_S, renew_every_s=LEASE_S / 4, topics=[TOPIC], group="doomed", drain_s=1.0)
_WRITER = WriterSettings(block_bytes=400, window_s=0.02, names_ahead=8, renew_every_s=1.0)
_AGAIN = (AppendFailed, AppendUnknown, NotLeader, Unavailable)


class Order(msgspec.Struct):
    """What the test wants of the processes. ``lake`` is of `LakeSettings`, with its secrets."""

    url: str
    lake: dict[str, object]
    directory: str
    seed: str
    agents: int
    disturbances: int  # at least
    seconds: float  # at least


class Note(msgspec.Struct, array_like=True):
    """An append that is about to be made; with a base, one that was acknowledged."""

    producer: str
    partition: int
    sequence: int
    count: int
    base: int | None = None

    def records(self) -> list[NewRecord]:
        """What it appends follows from who appends it, and where."""
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
    """Records ``first..end-1`` that a member of the group was given."""

    partition: int
    first: int
    end: int


class Journal:
    """Of one agent and its successors. Each note is one write, so that none is torn."""

    def __init__(self, path: Path) -> None:
        self.pending: dict[tuple[str, int], Note] = {}
        self._next: dict[tuple[str, int], int] = {}
        for note in read_updater_state(path):
            self._take(note)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def next(self, producer: str, partition: int, count: int) -> Note:
        """What the producer has to append there: what had no answer, else something new."""
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


class Diary:
    """What members have read, before they commit it."""

    def __init__(self, order: Order, name: str) -> None:
        self._file = os.open(Path(order.directory, f"{name}.taken"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    async def read(self, member: Member, most: int, wait_s: float) -> bool:
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


def around(order: Order, store: MetadataStore) -> ComponentContext:
    return ComponentContext(store, SystemLoopClock(), SecretStr(order.url), LakeSettings.model_validate(order.lake))


def following(order: Order, reading: Reading) -> Following:
    follower = open_follower(order.url, PostgresSourceSettings(), TailSettings(), SystemLoopClock())
    return Following(follower, reading.feed)


async def drain(order: Order) -> None:
    """The last member: what all the others have not committed."""
    store = await open_store(order.url)
    reading = Reading(around(order, store))
    diary = Diary(order, "last")
    stops = {row.partition_id: row.high_watermark for row in await store.list_partitions(TOPIC)}
    async with following(order, reading), Member(reading.ahead, SHARED, TOPIC, stops=stops, lease_s=LEASE_S) as member:
        while not await member.finished():
            await diary.read(member, 100, 0.1)
    await reading.close()
    await store.close()


class Life:
    """One process. Tells of its steps, so that it can be killed after any of them, however slow the machine is."""

    def __init__(self, order: Order, slot: int, incarnation: int, steps: int) -> None:
        self._order, self._slot = order, slot
        self._name = f"{order.seed}/{slot}/{incarnation}"
        self._steps = steps
        self._journal = Journal(Path(order.directory, f"{slot}.notes"))

    async def live(self) -> None:
        store = await open_store(self._order.url, settings=StoreSettings(busy_timeout_s=60))
        place = around(self._order, store)
        async with Agent(store, place.clock, _AGENT) as agent, SegmentWriter(place, agent, _WRITER) as writer:
            producing = (self._produce(writer, f"{self._slot}-{number}") for number in range(PRODUCERS))
            await asyncio.gather(self._tidy(place), self._consume(place), *producing)

    async def settle(self) -> None:
        """Nothing is left without an answer."""
        store = await open_store(self._order.url, settings=StoreSettings(busy_timeout_s=60))
        place = around(self._order, store)
        async with Agent(store, place.clock) as agent, SegmentWriter(place, agent, _WRITER) as writer:
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
        appended = await writer.append(TOPIC, partition, note.records(), stamp=Stamp(producer, note.sequence))
        self._journal.write(msgspec.structs.replace(note, base=appended.base_offset))
        self._step()

    async def _consume(self, place: ComponentContext) -> None:
        chance = random.Random(f"{self._name}/consume")
        reading = Reading(place)
        diary = Diary(self._order, str(self._slot))
        async with (
            following(self._order, reading),
            Member(reading.ahead, SHARED, TOPIC, lease_s=LEASE_S) as member,
        ):
            while True:
                if await diary.read(member, chance.choice((3, 50)), 0.5):
                    self._step()
                if chance.random() < 0.5:
                    await member.commit()

    async def _tidy(self, place: ComponentContext) -> None:
        chance = random.Random(f"{self._name}/tidy")
        reading = Reading(place)
        reading.feed.abandon()
        location = join(canonical(place.lake.warehouse), "streams")
        policy = MergePolicy(fewest=3, settled_ms=0)
        merger = Merger(place.store, reading.objects, reading.cache, place.clock, location, policy)
        retention = Retention(place.store, place.clock, 3)
        while True:
            await asyncio.sleep(chance.random() * 0.5)
            with suppress(Unavailable):
                if chance.random() < 0.7:
                    await merger.merge([(TOPIC, partition) for partition in range(PARTITIONS)])
                else:
                    partition = chance.randrange(PARTITIONS)
                    groups = Groups(place.store)
                    read = [(await groups.resume(group, TOPIC, [partition]))[partition] for group in (TAIL, SHARED)]
                    await retention.delete_before(TOPIC, partition, chance.randint(0, min(read)))
            self._step()

    def _step(self) -> None:
        with suppress(BlockingIOError):  # nobody counts just now
            os.write(self._steps, b".")


class Child:
    def __init__(self, order: Order, slot: int, incarnation: int = 0) -> None:
        self.slot, self.incarnation = slot, incarnation
        self.paused_until: float | None = None
        self.told, steps = os.pipe()
        os.set_blocking(self.told, False)
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
        os.close(self.told)
        _, status = os.waitpid(self.pid, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"agent {self.slot}, life {self.incarnation}, ended by itself")


class Nursery:
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
            time.sleep(self._chance.random() * LONGEST_DELAY_S)  # into the middle of something
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
        """Until it has made so many steps from now on. Those whose pause is over wake up, or die in their sleep."""
        with suppress(BlockingIOError):
            while os.read(child.told, 1 << 16):
                continue
        while steps > 0:
            paused = [other for other in self._children.values() if other.paused_until is not None]
            for other in paused:
                if time.monotonic() >= (other.paused_until or 0):
                    if self._chance.random() < 0.2:
                        self._replace(other)
                    else:
                        other.resume()
            ready, _, _ = select.select([child.told], [], [], 0.05)
            if ready:
                made = os.read(child.told, steps)
                if not made:
                    raise SystemExit(f"agent {child.slot}, life {child.incarnation}, ended by itself")
                steps -= len(made)


if __name__ == "__main__":
    Nursery(msgspec.json.decode(sys.stdin.buffer.read(), type=Order)).run()
