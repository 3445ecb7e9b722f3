"""Append, read, merge and cleanup on a real S3 server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext, LakeSettings
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.locations import join
from components.lib.lake.storage.objects import Objects
from components.lib.streams.agents import LeaseAgent
from components.lib.streams.read_context import ReadContext
from components.lib.streams.writer import SegmentWriter
from components.segment_store.maintenance.merge_policy import MergePolicy
from components.segment_store.maintenance.merging import Merger
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.position import Position

pytestmark = pytest.mark.slow

POLICY = MergePolicy(min_segments=3, min_age_ms=0)


class Counting(Objects):
    def __init__(self, lake: LakeSettings) -> None:
        super().__init__(lake)
        self.ranges = 0

    async def get_range(self, uri: str, start: int, length: int) -> bytes:
        self.ranges += 1
        return await super().get_range(uri, start, length)


@pytest.fixture
async def real_store(sqlite_url: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(sqlite_url)
    yield store
    await store.close()


async def test_records_on_s3(sqlite_url: str, real_store: MetadataStore, s3_lake: LakeSettings) -> None:
    store, clock = real_store, SystemLoopClock()
    context = ComponentContext(store, clock, SecretStr(sqlite_url), s3_lake)
    await store.create_topic("clicks", 3)
    async with LeaseAgent(store, clock) as agent, SegmentWriter(context, agent) as writer:
        for number in range(4):
            for partition in range(3):
                await writer.append("clicks", partition, [b"%d-%d" % (partition, number)])
    objects = Counting(s3_lake)
    read_context = ReadContext(context, objects=objects)
    read_context.change_feed.resume(Position(1))
    wanted = {partition: [b"%d-%d" % (partition, number) for number in range(4)] for partition in range(3)}
    assert await _values(read_context) == wanted
    assert objects.ranges <= 12  # one per block
    assert await _values(read_context) == wanted
    assert objects.ranges <= 12
    merger = Merger(store, objects, read_context.cache, clock, join(s3_lake.warehouse, "streams"), POLICY)
    assert (await merger.merge({("clicks", partition): 0 for partition in range(3)})).new == 3
    assert await clean_intents(store, objects, 0, "cleaner")
    cold_objects = Counting(s3_lake)
    cold = ReadContext(context, objects=cold_objects)
    cold.change_feed.resume(Position(1))
    assert await _values(cold) == wanted
    assert cold_objects.ranges <= 3
    await read_context.close()
    await cold.close()


async def _values(read_context: ReadContext) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {}
    for partition in range(3):
        found[partition] = []
        while len(records := await read_context.reader.read("clicks", partition, len(found[partition]))):
            found[partition] += [record.value for record in records]
    return found
