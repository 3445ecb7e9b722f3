"""Agents die and sleep at any point; every acknowledged record is read once, in order, unchanged, and nothing else is.

Shortly in `make test`; all databases on all storages, and longer, with `make faults MINUTES=... SEED=...`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from astha.subscribers import ComponentContext, LakeSettings
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.streams.consumer import Consumer
from components.lib.streams.format import NewRecord, Record
from components.lib.streams.read_context import Reading
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.errors import NotFound
from registry.position import Position
from tests.faults.crash_agents import (
    PARTITIONS,
    SHARED,
    TAIL,
    TOPIC,
    Order,
    around,
    following,
    read_taken,
    read_updater_state,
)
from tests.streams import stored_files
from tests.waiting import eventually

pytestmark = pytest.mark.slow

OLD_MS = 5_000
"""Longer than anybody is paused, so that the cleaner beside them takes names only from the dead."""

LONG = "MINUTES" in os.environ
COMBINATIONS = [("sqlite", "disk"), ("postgres", "s3"), *([("sqlite", "s3"), ("postgres", "disk")] if LONG else [])]


class Log:
    """What a consumer has read from the first record on, while everything else was happening."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.seen: list[list[Record]] = [[] for _ in range(PARTITIONS)]

    async def follow(self) -> None:
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        async with Consumer(self._reading.ahead, TOPIC, offsets, group=TAIL) as consumer:
            while True:
                polled = await consumer.poll(wait_s=60)
                if polled is not None:
                    self.seen[polled.partition_id] += polled.records
                    await consumer.commit()  # from here on it may be trimmed

    def reaches(self, ends: list[int]) -> bool:
        return [len(records) for records in self.seen] == ends


async def clean(store: MetadataStore, reading: Reading) -> None:
    while True:
        await clean_intents(store, reading.objects, OLD_MS, "beside")
        await asyncio.sleep(0.3)


async def watch_commits(store: MetadataStore) -> None:
    """Those of the group that the agents share go forward, whoever wakes up and believes that it is still a member."""
    before = dict.fromkeys(range(PARTITIONS), 0)
    while True:
        await asyncio.sleep(0.02)
        with suppress(NotFound):  # nobody has come yet
            for row in await store.get_consumer_offsets(SHARED):
                assert row.committed_offset >= before[row.partition_id], "a commit went back"
                before[row.partition_id] = row.committed_offset


@asynccontextmanager
async def beside(*work: asyncio.Task[None]) -> AsyncIterator[None]:
    """Whatever fails there fails the test."""
    try:
        yield
        for task in work:
            assert not task.done(), task
    finally:
        for task in work:
            task.cancel()
        answers = await asyncio.gather(*work, return_exceptions=True)
    for answer in answers:
        if not isinstance(answer, asyncio.CancelledError):
            raise AssertionError("ended before its time") from answer


async def run_agents(order: Order) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.crash_agents", stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        await process.communicate(msgspec.json.encode(order))
        assert process.returncode == 0
    finally:
        with suppress(ProcessLookupError):  # whoever is left, the paused too
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def acknowledged(directory: Path) -> list[list[NewRecord]]:
    """By partition and offset. Everything has its answer by now, so the answers leave no gap and don't overlap."""
    found: dict[int, dict[int, list[NewRecord]]] = defaultdict(dict)
    ends: dict[tuple[str, int], int] = {}
    for path in directory.glob("*.notes"):
        for note in read_updater_state(path):
            if note.base is not None:
                assert note.base >= ends.get((note.producer, note.partition), 0), f"out of order: {note}"
                ends[note.producer, note.partition] = note.base + note.count
                assert note.base not in found[note.partition], f"an offset was given twice: {note}"
                found[note.partition][note.base] = note.records()
    partitions: list[list[NewRecord]] = []
    for number in range(PARTITIONS):
        records: list[NewRecord] = []
        for base, appended in sorted(found[number].items()):
            assert base == len(records), "a gap or an overlap"
            records += appended
        partitions.append(records)
    return partitions


def shared(directory: Path) -> list[set[int]]:
    """Offsets that the group which the agents share was given, by partition."""
    found: list[set[int]] = [set() for _ in range(PARTITIONS)]
    for path in directory.glob("*.taken"):
        for taken in read_taken(path):
            found[taken.partition].update(range(taken.first, taken.end))
    return found


def contents(records: list[Record]) -> list[NewRecord]:
    return [NewRecord(record.value, record.key, record.headers, record.timestamp) for record in records]


async def read_cold(place: ComponentContext, partition: int) -> list[Record]:
    """By somebody who has just come."""
    reading = Reading(place)
    reading.feed.resume(Position(1))
    try:
        offset = (await reading.reader.bounds(TOPIC, partition)).start
        records: list[Record] = []
        while len(found := await reading.reader.read(TOPIC, partition, offset)):
            records += found
            offset = found.next_offset
        return records
    finally:
        await reading.close()


@pytest.fixture
def seed() -> str:
    chosen = os.environ.get("SEED") or str(random.randrange(1_000_000))
    print(f"SEED={chosen}")  # noqa: T201
    return chosen


@pytest.fixture(params=COMBINATIONS, ids="-".join)
def combination(request: pytest.FixtureRequest) -> tuple[str, LakeSettings]:
    backend, storage = request.param
    lake: LakeSettings = request.getfixturevalue("lake" if storage == "disk" else "s3_lake")
    return request.getfixturevalue(f"{backend}_url"), lake


@pytest.fixture
def order(combination: tuple[str, LakeSettings], tmp_path: Path, seed: str) -> Order:
    url, lake = combination
    s3 = {"endpoint": lake.s3.endpoint, "allow_http": lake.s3.allow_http}
    for name, secret in (("access_key", lake.s3.access_key), ("secret_key", lake.s3.secret_key)):
        s3[name] = None if secret is None else secret.get_secret_value()
    given: dict[str, object] = {"warehouse": lake.warehouse, "s3": s3}
    seconds = float(os.environ.get("MINUTES", "0")) * 60
    return Order(url, given, str(tmp_path), seed, agents=3 if LONG else 2, disturbances=6, seconds=seconds)


@pytest.fixture
async def place(order: Order) -> AsyncIterator[ComponentContext]:
    store = await open_store(order.url)
    yield around(order, store)
    await store.close()


async def test_the_log_is_what_was_acknowledged(order: Order, place: ComponentContext) -> None:
    store = place.store
    await store.create_topic(TOPIC, PARTITIONS)
    reading = Reading(place)
    log = Log(reading)
    async with following(order, reading):
        reader = asyncio.create_task(log.follow())
        others = (asyncio.create_task(clean(store, reading)), asyncio.create_task(watch_commits(store)))
        async with beside(reader, *others):
            await run_agents(order)
            ends = [row.high_watermark for row in await store.list_partitions(TOPIC)]
            await eventually(lambda: reader.done() or log.reaches(ends), "a consumer that has read everything")
    wanted = acknowledged(Path(order.directory))
    for partition, records in enumerate(log.seen):
        assert contents(records) == wanted[partition]
        assert [record.offset for record in records] == list(range(len(records)))
        left = await read_cold(place, partition)
        assert left == records[len(records) - len(left) :]
    assert shared(Path(order.directory)) == [set(range(end)) for end in ends]

    async def cleaned() -> bool:
        """A server may still be at the last statement of somebody who is dead: what it holds is passed over."""
        await clean_intents(store, reading.objects, 0, "afterwards")
        return not await store.list_stale_intents(0)

    await eventually(cleaned, "no intents left")
    live = {row.uri for number in range(PARTITIONS) async for row in store.stream_segments(TOPIC, number)}
    assert await stored_files(place.lake) == live
    leases = await store.list_partition_leases(topic=TOPIC)
    assert sum(lease.epoch for lease in leases) > PARTITIONS + order.agents, "nobody was taken over"
    await reading.close()
