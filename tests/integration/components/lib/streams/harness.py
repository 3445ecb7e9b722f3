"""A registry, a directory of objects that counts requests, and a reader. The test publishes the events."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from astha.clock import SystemLoopClock
from astha.events import Commit, Event, Operation
from astha.subscribers import LakeSettings
from components.lib.lake.storage.objects import Objects
from components.lib.streams.change_feed import ChangeFeed
from components.lib.streams.format import NewRecord, RecordColumns, encode_segment, partition_tag
from components.lib.streams.reader.block_cache import BlockCache
from components.lib.streams.reader.blocks import CachedBlock, decode
from components.lib.streams.reader.reader import Reader
from registry.cache import CachedStore
from registry.contract import MetadataStore
from registry.inputs import SegmentDraft
from registry.models import LOCAL_BUCKET, Row, Segment, object_uri
from registry.position import Position

TOPIC = "clicks"
START_MS = 1_700_000_000_000


class CountingObjects(Objects):
    """Records every range request in `requests`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(LakeSettings(warehouse=str(directory)))
        self.requests: list[tuple[str, int, int]] = []

    async def get_range(self, uri: str, start: int, length: int) -> bytes:
        self.requests.append((uri, start, length))
        return await super().get_range(uri, start, length)


class StreamHarness:
    """Values are the offsets as text; the timestamp of offset n is n seconds after the start."""

    def __init__(self, store: MetadataStore, directory: Path) -> None:
        self.store = store
        self.directory = directory
        self.objects = CountingObjects(directory.parent)
        self.cached = CachedStore(store)
        self.change_feed = ChangeFeed(self.cached)
        self.reader = self.new_reader()
        self._ends: dict[int, int] = {}
        self._names = itertools.count()

    def new_reader(self) -> Reader:
        """Returns a reader with an empty cache."""
        cache: BlockCache[CachedBlock] = BlockCache(self.objects, decode)
        return Reader(self.change_feed, cache, SystemLoopClock())

    async def write(
        self, *counts: int, partition: int = 0, per_block: int | None = None, together: bool = True
    ) -> list[Segment]:
        """Writes segments of so many records each, in one object or in one each."""
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
        """Uploads an object without registering it."""
        path = self.directory / f"{next(self._names):04}.seg"
        base = first
        data, drafts = b"", []
        for count in counts:
            columns = RecordColumns.of([record(number) for number in range(base, base + count)], START_MS)
            block_bytes = 512 << 10 if per_block is None else columns.ends()[0] * per_block
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

    async def join_objects(self, drafts: Sequence[SegmentDraft]) -> None:
        """Registers segments that have an object each as adjacent segments of one object."""
        path = self.directory / f"{next(self._names):04}.seg"
        data, joined = b"", []
        for draft in drafts:
            joined.append(
                msgspec.structs.replace(draft, s3_key=str(path).lstrip("/"), byte_offset=len(data)),
            )
            data += await self.objects.get(object_uri(draft.s3_bucket, draft.s3_key))
            self._ends[draft.partition_id] = draft.end_offset + 1
        await self.objects.put(path.as_uri(), data)
        await self.store.add_segments(joined)

    def damage(self, segment: Segment, place: int | None = None) -> None:
        """Flips one bit, by default in the middle."""
        at = segment.byte_offset + (segment.size_bytes // 2 if place is None else place)
        with Path("/", segment.s3_key).open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x10]))

    def publish(self, segments: Sequence[Segment], operation: Operation = Operation.INSERT) -> None:
        position = Position(self.cached.applied + 1)
        commit = Commit(position, position, 0, len(segments))
        before = None if operation is Operation.INSERT else segments[0]
        events: list[Event[Row]] = [
            Event(operation, row, before if before is None else row, commit, index)
            for index, row in enumerate(segments)
        ]
        self.change_feed.apply([events])


def record(number: int) -> NewRecord:
    return NewRecord(b"%06d" % number, timestamp=START_MS + number * 1000)


def numbers(values: Sequence[bytes | None]) -> list[int]:
    return [int(value or b"") for value in values]
