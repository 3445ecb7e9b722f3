"""Agents are killed and paused at any point; every acknowledged record is read once, in order, unchanged, and nothing
else is.

Short in `make test`; all databases on all storages, and longer, with `make faults MINUTES=... SEED=...`.
"""

from __future__ import annotations

import asyncio
import os
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
from components.lib.streams.read_context import ReadContext
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
    component_context,
    following,
    read_taken,
    read_updater_state,
)
from tests.streams import stored_files
from tests.waiting import eventually

pytestmark = pytest.mark.slow

OLD_MS = 5_000
"""Longer than any pause, so that the concurrent cleaner takes only names of dead agents."""

LONG = "MINUTES" in os.environ
COMBINATIONS = [("sqlite", "disk"), ("postgres", "s3"), *([("sqlite", "s3"), ("postgres", "disk")] if LONG else [])]


class Log:
    """The records that a consumer has read from the first one on, while everything else was happening."""

    def __init__(self, read_context: ReadContext) -> None:
        self._reading = read_context
        self.seen: list[list[Record]] = [[] for _ in range(PARTITIONS)]

    async def follow(self) -> None:
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        async with Consumer(self._reading.prefetcher, TOPIC, offsets, group=TAIL) as consumer:
            while True:
                polled = await consumer.poll(wait_s=60)
                if polled is not None:
                    self.seen[polled.partition_id] += polled.records
                    await consumer.commit()  # from here on it may be trimmed

    def reaches(self, ends: list[int]) -> bool:
        return [len(records) for records in self.seen] == ends


async def clean(store: MetadataStore, read_context: ReadContext) -> None:
    while True:
        await clean_intents(store, read_context.objects, OLD_MS, "beside")
        await asyncio.sleep(0.3)


async def watch_commits(store: MetadataStore) -> None:
    """Commits of the agents' group only advance, even if a paused member resumes."""
    before = dict.fromkeys(range(PARTITIONS), 0)
    while True:
        await asyncio.sleep(0.02)
        with suppress(NotFound):  # no member has joined yet
            for row in await store.get_consumer_offsets(SHARED):
                assert row.committed_offset >= before[row.partition_id], "a commit went back"
                before[row.partition_id] = row.committed_offset


@asynccontextmanager
async def beside(*work: asyncio.Task[None]) -> AsyncIterator[None]:
    """A failure of the concurrent work fails the test."""
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
        with suppress(ProcessLookupError):  # what is left, paused processes too
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def acknowledged(directory: Path) -> list[list[NewRecord]]:
    """Returns acknowledged records by partition and offset. All appends are acknowledged by now, so there are no gaps
    or overlaps.
    """
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
    """Returns the offsets that the agents' group has read, by partition."""
    found: list[set[int]] = [set() for _ in range(PARTITIONS)]
    for path in directory.glob("*.taken"):
        for taken in read_taken(path):
            found[taken.partition].update(range(taken.first, taken.end))
    return found


def contents(records: list[Record]) -> list[NewRecord]:
    return [NewRecord(record.value, record.key, record.headers, record.timestamp) for record in records]


async def read_cold(context: ComponentContext, partition: int) -> list[Record]:
    """Reads with empty caches."""
    read_context = ReadContext(context)
    read_context.change_feed.resume(Position(1))
    try:
        offset = (await read_context.reader.bounds(TOPIC, partition)).start
        records: list[Record] = []
        while len(found := await read_context.reader.read(TOPIC, partition, offset)):
            records += found
            offset = found.next_offset
        return records
    finally:
        await read_context.close()


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
async def context(order: Order) -> AsyncIterator[ComponentContext]:
    store = await open_store(order.url)
    yield component_context(order, store)
    await store.close()


async def test_the_log_is_what_was_acknowledged(order: Order, context: ComponentContext) -> None:
    store = context.store
    await store.create_topic(TOPIC, PARTITIONS)
    read_context = ReadContext(context)
    log = Log(read_context)
    async with following(order, read_context):
        reader = asyncio.create_task(log.follow())
        others = (asyncio.create_task(clean(store, read_context)), asyncio.create_task(watch_commits(store)))
        async with beside(reader, *others):
            await run_agents(order)
            ends = [row.high_watermark for row in await store.list_partitions(TOPIC)]
            await eventually(lambda: reader.done() or log.reaches(ends), "a consumer that has read everything")
    wanted = acknowledged(Path(order.directory))
    for partition, records in enumerate(log.seen):
        assert contents(records) == wanted[partition]
        assert [record.offset for record in records] == list(range(len(records)))
        left = await read_cold(context, partition)
        assert left == records[len(records) - len(left) :]
    assert shared(Path(order.directory)) == [set(range(end)) for end in ends]

    async def cleaned() -> bool:
        """A server may still execute the last statement of a killed process: intents that it locks are skipped."""
        await clean_intents(store, read_context.objects, 0, "afterwards")
        return not await store.list_stale_intents(0)

    await eventually(cleaned, "no intents left")
    live = {row.uri for number in range(PARTITIONS) async for row in store.stream_segments(TOPIC, number)}
    assert await stored_files(context.lake) == live
    leases = await store.list_partition_leases(topic=TOPIC)
    assert sum(lease.epoch for lease in leases) > PARTITIONS + order.agents, "no lease moved to another agent"
    await read_context.close()
