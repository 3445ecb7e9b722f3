"""Merging: small segments of many partitions become one object, in which each partition's records lie together.

The object is uploaded under an intent; then the old rows are replaced by the new ones, which fails for those that
somebody has touched meanwhile. Whatever interrupts it leaves the log as it was: an object that was not registered is
the cleaner's, and so is one that nothing is in any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from uuid import uuid4

import msgspec
import structlog

from astha.clock import LoopClock
from components.lib.lake.storage.locations import join, parse
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageError
from components.lib.streams.errors import Corrupt
from components.lib.streams.format import (
    Columns,
    EncodedSegment,
    RecordBatch,
    SegmentEntry,
    encode_footer,
    encode_segment,
    partition_tag,
)
from components.lib.streams.reader.block_cache import BlockCache
from components.lib.streams.reader.blocks import CachedBlock, PlannedBlock, SegmentLayout
from components.segment_store.maintenance.merge_policy import MergePolicy, choose, left_over
from registry.contract import PAGE, MetadataStore
from registry.errors import Conflict, NotFound, RegistryError
from registry.inputs import SegmentDraft
from registry.models import LOCAL_BUCKET, Segment

log = structlog.get_logger(__name__)

_TAIL = 4 * PAGE
_OLD_AT_ONCE = 250  # rows replaced in one transaction, unless a run alone has more


class SegmentMergeResult(msgspec.Struct, frozen=True):
    """``again``: partitions in which there may be more to merge. ``left``: small segments that are too few alone."""

    old: int
    new: int
    size_bytes: int
    again: list[tuple[str, int]]
    left: dict[tuple[str, int], int]


class _Run(msgspec.Struct, frozen=True):
    old: list[Segment]
    columns: Columns


class Merger:
    def __init__(
        self,
        store: MetadataStore,
        objects: Objects,
        cache: BlockCache[CachedBlock],
        clock: LoopClock,
        location: str,
        policy: MergePolicy,
    ) -> None:
        self._store = store
        self._objects = objects
        self._cache = cache
        self._clock = clock
        self._location = location
        self._policy = policy
        self._owner = f"segment-merger {uuid4().hex}"
        self._layout = SegmentLayout()

    async def merge(self, partitions: Sequence[tuple[str, int]]) -> SegmentMergeResult:
        """What is worth merging in these partitions, up to one object of it."""
        chosen, again, left = await self._choose(partitions)
        runs = await self._read(chosen)
        if not runs:
            return SegmentMergeResult(0, 0, 0, again, left)
        segments = await asyncio.to_thread(_encode, runs)
        uri = self._new_uri()
        await self._store.record_intents([uri], purpose="segments", owner=self._owner)
        await self._objects.put(uri, _object(runs, segments))
        old, new, touched = await self._register(uri, runs, segments)
        again += [key for key in touched if key not in again]
        if not new:
            await self._discard(uri)
        return SegmentMergeResult(old, new, sum(segment.size for segment in segments), again, left)

    async def _choose(
        self, partitions: Sequence[tuple[str, int]]
    ) -> tuple[list[list[Segment]], list[tuple[str, int]], dict[tuple[str, int], int]]:
        chosen: list[list[Segment]] = []
        again: dict[tuple[str, int], None] = {}
        left: dict[tuple[str, int], int] = {}
        policy, size = self._policy, 0
        for key in partitions:
            if size >= policy.target_bytes:
                again[key] = None
                continue
            try:
                tail = await self._tail(*key)
            except NotFound:
                continue
            now = self._clock.now_ms()
            found = choose(tail, policy, now)
            left[key] = left_over(tail, policy)
            if len(tail) == _TAIL or _count(choose(tail, policy, now + policy.settled_ms)) > _count(found):
                again[key] = None
            for run in found:
                length = sum(segment.size_bytes for segment in run)
                if chosen and size + length > policy.target_bytes:
                    again[key] = None
                    break
                chosen.append(run)
                size += length
        return chosen, list(again), left

    async def _tail(self, topic: str, number: int) -> deque[Segment]:
        """The last segments, of which the next merge sees as many again if there are more."""
        tail: deque[Segment] = deque(maxlen=_TAIL)
        async for segment in self._store.stream_segments(topic, number):
            tail.append(segment)
        return tail

    async def _read(self, chosen: Sequence[list[Segment]]) -> list[_Run]:
        """All at once, since neighbours in an object are one request, whosever they are."""
        plans = [[plan for segment in run for plan in self._blocks(segment)] for run in chosen]
        await self._cache.prefetch([plan.address for run in plans for plan in run])
        runs = []
        for old, wanted in zip(chosen, plans, strict=True):
            try:
                batches = await self._batches(wanted)
            except (Corrupt, ObjectMissing) as error:
                log.warning("segments that can't be read are not merged", error=str(error))
            else:
                runs.append(_Run(old, Columns.joined([batch.to_columns() for batch in batches])))
        return runs

    def _blocks(self, segment: Segment) -> Iterator[PlannedBlock]:
        return self._layout.blocks(segment, segment.base_offset)

    async def _batches(self, plans: Sequence[PlannedBlock]) -> list[RecordBatch]:
        batches: list[RecordBatch] = []
        while len(batches) < len(plans):
            rest = plans[len(batches) :]
            found = await self._cache.get([plan.address for plan in rest])
            batches += [plan.open(block) for plan, block in zip(rest, found, strict=False)]
        return batches

    async def _register(
        self, uri: str, runs: Sequence[_Run], segments: Sequence[EncodedSegment]
    ) -> tuple[int, int, list[tuple[str, int]]]:
        """Bounded transactions. A Conflict costs the runs that it names, no others; answers their partitions too."""
        drafts = _drafts(uri, runs, segments)
        waiting = list(zip(runs, drafts, strict=True))
        old = new = 0
        dropped: list[tuple[str, int]] = []
        while waiting:
            some = [waiting.pop(0)]
            while waiting and sum(len(run.old) for run, _ in some) + len(waiting[0][0].old) <= _OLD_AT_ONCE:
                some.append(waiting.pop(0))
            rows = [segment for run, _ in some for segment in run.old]
            try:
                await self._store.replace_segments(rows, [draft for _, draft in some], intents_of=self._owner)
            except Conflict as conflict:
                touched = set(conflict.names)
                to_blame = [bool(touched & set(map(_name, run.old))) for run, _ in some]
                if not any(to_blame):  # the object is no longer ours
                    to_blame = [True] * len(some)
                log.info("segments were touched while they were merged", segments=len(rows), error=str(conflict))
                dropped += [_key(run) for (run, _), blamed in zip(some, to_blame, strict=True) if blamed]
                waiting[:0] = [pair for pair, blamed in zip(some, to_blame, strict=True) if not blamed]
            else:
                old += len(rows)
                new += len(some)
        return old, new, dropped

    async def _discard(self, uri: str) -> None:
        """Nothing is registered in it, for certain. If this fails, the cleaner does it."""
        try:
            await self._objects.delete_many([uri], roots=self._objects.roots.extended([self._location]))
            await self._store.complete_intents([uri])
        except (StorageError, RegistryError) as error:
            log.info("a merged object that nobody wants is left to the cleaner", uri=uri, error=str(error))

    def _new_uri(self) -> str:
        return join(self._location, "merged", f"{self._clock.now_ms():014}-{uuid4().hex}.segments")


def _key(run: _Run) -> tuple[str, int]:
    return run.old[0].topic, run.old[0].partition_id


def _count(runs: Sequence[Sequence[Segment]]) -> int:
    return sum(map(len, runs))


def _encode(runs: Sequence[_Run]) -> list[EncodedSegment]:
    return [encode_segment(run.columns, tag=partition_tag(run.old[0].topic, run.old[0].partition_id)) for run in runs]


def _object(runs: Sequence[_Run], segments: Sequence[EncodedSegment]) -> bytes:
    entries, pieces, at = [], [], 0
    for run, segment in zip(runs, segments, strict=True):
        first = run.old[0]
        blocks = [(place.size, place.records) for place in segment.index]
        entries.append(SegmentEntry(first.topic, first.partition_id, first.base_offset, at, blocks))
        pieces += segment.blocks
        at += segment.size
    return b"".join([*pieces, encode_footer(entries)])


def _drafts(uri: str, runs: Sequence[_Run], segments: Sequence[EncodedSegment]) -> list[SegmentDraft]:
    place = parse(uri)
    bucket = place.root or LOCAL_BUCKET
    drafts, at = [], 0
    for run, segment in zip(runs, segments, strict=True):
        first, last = run.old[0], run.old[-1]
        drafts.append(
            SegmentDraft(
                first.topic, first.partition_id, first.base_offset, last.end_offset, segment.records, segment.size,
                bucket, place.key, at, segment.min_timestamp, segment.max_timestamp, segment.index.encode(),
            )
        )  # fmt: skip
        at += segment.size
    return drafts


def _name(segment: Segment) -> str:
    return f"{segment.topic}/{segment.partition_id}/{segment.base_offset}"
