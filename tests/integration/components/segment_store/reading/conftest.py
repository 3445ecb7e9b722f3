"""A registry, a directory of objects whose requests are counted, and a reader; the test says what the feed hears."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from astha.clock import SystemLoopClock
from astha.events import Commit, Event, Operation
from astha.subscribers import LakeSettings
from components.lake.objects import Objects
from components.segment_store.feed import Feed
from components.segment_store.format import Columns, NewRecord, encode_segment, partition_tag
from components.segment_store.reader.block_cache import BlockCache
from components.segment_store.reader.blocks import Block, decode
from components.segment_store.reader.reader import Reader
from registry.cache import CachedStore
from registry.contract import MetadataStore
from registry.drafts import SegmentDraft
from registry.models import LOCAL_BUCKET, Row, Segment
from registry.position import Position

TOPIC = "clicks"
START_MS = 1_700_000_000_000


class CountingObjects(Objects):
    """`requests` has every range that was read."""

    def __init__(self) -> None:
        super().__init__(LakeSettings())
        self.requests: list[tuple[str, int, int]] = []

    async def get_range(self, uri: str, start: int, length: int) -> bytes:
        self.requests.append((uri, start, length))
        return await super().get_range(uri, start, length)


class Bench:
    """Values are their offsets as text; the record at offset n is n seconds after the start."""

    def __init__(self, store: MetadataStore, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.objects = CountingObjects()
        self.cached = CachedStore(store)
        self.feed = Feed(self.cached)
        self.reader = self.new_reader()
        self._ends: dict[int, int] = {}
        self._names = itertools.count()

    def new_reader(self) -> Reader:
        """With nothing in its cache."""
        cache: BlockCache[Block] = BlockCache(self.objects, decode)
        return Reader(self.feed, cache, SystemLoopClock())

    async def write(
        self, *counts: int, partition: int = 0, per_block: int | None = None, together: bool = True
    ) -> list[Segment]:
        """Segments of so many records each: one after the other in one object, or each in its own."""
        written: list[Segment] = []
        for some in [counts] if together else [(count,) for count in counts]:
            written += await self._write_object(some, partition, per_block)
        return written

    async def _write_object(self, counts: Sequence[int], partition: int, per_block: int | None) -> list[Segment]:
        first = self._ends.get(partition, 0)
        drafts = await self.put_object(counts, partition, first=first, per_block=per_block)
        await self.store.add_segments(drafts)
        self._ends[partition] = drafts[-1].end_offset + 1
        return await self.store.get_segments(TOPIC, partition, from_offset=first)

    async def put_object(
        self, counts: Sequence[int], partition: int, *, first: int, per_block: int | None = None
    ) -> list[SegmentDraft]:
        """Not registered."""
        path = self.directory / f"{next(self._names):04}.seg"
        base = first
        data, drafts = b"", []
        for count in counts:
            columns = Columns.of([record(number) for number in range(base, base + count)], START_MS)
            block_bytes = 512 << 10 if per_block is None else next(iter(columns.weights())) * per_block
            made = encode_segment(columns, tag=partition_tag(TOPIC, partition), block_bytes=block_bytes)
            drafts.append(
                SegmentDraft(
                    TOPIC, partition, base, base + count - 1, count, made.size, LOCAL_BUCKET, str(path).lstrip("/"),
                    len(data), made.min_timestamp, made.max_timestamp, made.index.encode(),
                )
            )  # fmt: skip
            data += b"".join(made.blocks)
            base += count
        await self.objects.put(path.as_uri(), data)
        return drafts

    def tell(self, segments: Sequence[Segment], operation: Operation = Operation.INSERT) -> None:
        position = Position(self.cached.applied + 1)
        commit = Commit(position, position, 0, len(segments))
        before = None if operation is Operation.INSERT else segments[0]
        events: list[Event[Row]] = [
            Event(operation, row, before if before is None else row, commit, index)
            for index, row in enumerate(segments)
        ]
        self.feed.apply([events])


def record(number: int) -> NewRecord:
    return NewRecord(b"%06d" % number, timestamp=START_MS + number * 1000)


def numbers(values: Sequence[bytes | None]) -> list[int]:
    return [int(value or b"") for value in values]


@pytest.fixture
async def bench(store: MetadataStore, tmp_path: Path) -> AsyncIterator[Bench]:
    await store.create_topic(TOPIC, 3)
    made = Bench(store, tmp_path / "objects")
    made.feed.resume(Position(1))
    yield made
    await made.reader.cache.close()
    await made.cached.index.close()
