"""Merges small segments of many partitions into one object, in which each partition's records are contiguous.

The object is uploaded under an intent; then the new rows replace the old ones, except for partitions whose old rows
were changed meanwhile. An interruption leaves the log unchanged: the cleaner deletes unregistered objects, and objects
without live segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from uuid import uuid4

import msgspec
import structlog

from astha.clock import LoopClock
from components.lib.lake.storage.locations import join, parse
from components.lib.lake.storage.objects import ObjectMissing, Objects, StorageError
from components.lib.streams.errors import Corrupt
from components.lib.streams.format import (
    EncodedSegment,
    RecordBatch,
    RecordColumns,
    SegmentEntry,
    encode_footer,
    encode_segment,
    partition_tag,
)
from components.lib.streams.reader.block_cache import BlockCache
from components.lib.streams.reader.blocks import CachedBlock, PlannedBlock, SegmentLayout
from components.segment_store.maintenance.merge_policy import MergePolicy, RunFinder
from registry.contract import MetadataStore
from registry.errors import Conflict, NotFound, RegistryError
from registry.inputs import SegmentDraft
from registry.models import LOCAL_BUCKET, Segment

log = structlog.get_logger(__name__)

_MAX_REPLACED_ROWS = 250  # per transaction, unless a run alone has more


class SegmentMergeResult(msgspec.Struct, frozen=True):
    """`revisit`: partitions that may have more to merge. `leftovers`: small segments per partition that are too few to
    merge.
    """

    old: int
    new: int
    size_bytes: int
    revisit: list[tuple[str, int]]
    leftovers: dict[tuple[str, int], int]


class _Look(msgspec.Struct, frozen=True):
    """What a partition has to merge now, youngest first; its small segments at the end that are too few; and whether
    there is more to merge later.
    """

    runs: list[list[Segment]]
    leftovers: int
    more: bool


class _MergeRun(msgspec.Struct, frozen=True):
    old: list[Segment]
    columns: RecordColumns


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

    async def merge(self, partitions: Mapping[tuple[str, int], int]) -> SegmentMergeResult:
        """Merges runs of these partitions, up to one object.

        Each partition is read from its end back to the given offset, and beyond it only as far as a run extends.
        """
        chosen, revisit, leftovers = await self._choose(partitions)
        runs = await self._read(chosen) if chosen else []
        if not runs:
            return SegmentMergeResult(0, 0, 0, revisit, leftovers)
        segments = await asyncio.to_thread(_encode, runs)
        uri = self._new_uri()
        await self._store.record_intents([uri], purpose="segments", owner=self._owner)
        await self._objects.put(uri, _build_object(runs, segments))
        old, new, changed = await self._register(uri, runs, segments)
        revisit += [key for key in changed if key not in revisit]
        if not new:
            await self._discard(uri)
        return SegmentMergeResult(old, new, sum(segment.size for segment in segments), revisit, leftovers)

    async def _choose(
        self, partitions: Mapping[tuple[str, int], int]
    ) -> tuple[list[list[Segment]], list[tuple[str, int]], dict[tuple[str, int], int]]:
        chosen: list[list[Segment]] = []
        revisit: dict[tuple[str, int], None] = {}
        leftovers: dict[tuple[str, int], int] = {}
        policy, size = self._policy, 0
        for key, offset in partitions.items():
            if size >= policy.target_bytes:
                revisit[key] = None
                continue
            try:
                look = await self._look(key, offset)
            except NotFound:
                continue
            leftovers[key] = look.leftovers
            if look.more:
                revisit[key] = None
            fitting: list[list[Segment]] = []
            for run in look.runs:
                length = sum(segment.size_bytes for segment in run)
                if (chosen or fitting) and size + length > policy.target_bytes:
                    revisit[key] = None
                    break
                fitting.append(run)
                size += length
            chosen += reversed(fitting)
        return chosen, list(revisit), leftovers

    async def _look(self, key: tuple[str, int], offset: int) -> _Look:
        """Reads the partition from its end: back to the offset, then to the beginning of the run found there."""
        policy, now = self._policy, self._clock.now_ms()
        found = RunFinder(policy, now)
        soon: RunFinder | None = None  # what can be merged when all segments are old enough
        at_end, leftovers = True, 0
        async for segment in self._store.stream_segments_backwards(*key):
            if soon is None:
                soon = RunFinder(policy, max(now, segment.created_at) + policy.min_age_ms)
            extends, extends_soon = found.add(segment), soon.add(segment)
            at_end = at_end and (extends_soon or not leftovers)
            if at_end:
                leftovers = soon.open_run
                at_end = leftovers > 0
            if segment.base_offset < offset and not (extends or extends_soon):
                break
            if found.fills_object:
                return _Look(found.runs, 0, more=True)
        if soon is None:
            return _Look([], 0, more=False)
        return _Look(found.runs, leftovers if leftovers < policy.min_segments else 0, soon.count > found.count)

    async def _read(self, chosen: Sequence[list[Segment]]) -> list[_MergeRun]:
        """Prefetches all runs together: adjacent blocks of an object are one request, whatever their partitions."""
        plans = [[plan for segment in run for plan in self._blocks(segment)] for run in chosen]
        await self._cache.prefetch([plan.address for run in plans for plan in run])
        runs = []
        for old, wanted in zip(chosen, plans, strict=True):
            try:
                batches = await self._batches(wanted)
            except (Corrupt, ObjectMissing) as error:
                log.warning("unreadable segments not merged", error=str(error))
            else:
                runs.append(_MergeRun(old, RecordColumns.joined([batch.to_columns() for batch in batches])))
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
        self, uri: str, runs: Sequence[_MergeRun], segments: Sequence[EncodedSegment]
    ) -> tuple[int, int, list[tuple[str, int]]]:
        """Replaces rows in bounded transactions. A Conflict drops only the runs that it names. Returns the counts of
        old and new segments, and the partitions that were dropped.
        """
        drafts = _drafts(uri, runs, segments)
        waiting = list(zip(runs, drafts, strict=True))
        old = new = 0
        dropped: list[tuple[str, int]] = []
        while waiting:
            some = [waiting.pop(0)]
            while waiting and sum(len(run.old) for run, _ in some) + len(waiting[0][0].old) <= _MAX_REPLACED_ROWS:
                some.append(waiting.pop(0))
            rows = [segment for run, _ in some for segment in run.old]
            try:
                await self._store.replace_segments(rows, [draft for _, draft in some], intents_of=self._owner)
            except Conflict as conflict:
                changed = set(conflict.names)
                named = [bool(changed & set(map(_name, run.old))) for run, _ in some]
                if not any(named):  # the intent is no longer ours
                    named = [True] * len(some)
                log.info("segments changed during their merge", segments=len(rows), error=str(conflict))
                dropped += [_key(run) for (run, _), conflicted in zip(some, named, strict=True) if conflicted]
                waiting[:0] = [pair for pair, conflicted in zip(some, named, strict=True) if not conflicted]
            else:
                old += len(rows)
                new += len(some)
        return old, new, dropped

    async def _discard(self, uri: str) -> None:
        """Deletes an object that certainly has no registered segment. If this fails, the cleaner does it."""
        try:
            await self._objects.delete_many([uri], roots=self._objects.roots.extended([self._location]))
            await self._store.complete_intents([uri])
        except (StorageError, RegistryError) as error:
            log.info("unused merged object left to the cleaner", uri=uri, error=str(error))

    def _new_uri(self) -> str:
        return join(self._location, "merged", f"{self._clock.now_ms():014}-{uuid4().hex}.segments")


def _key(run: _MergeRun) -> tuple[str, int]:
    return run.old[0].topic, run.old[0].partition_id


def _encode(runs: Sequence[_MergeRun]) -> list[EncodedSegment]:
    return [encode_segment(run.columns, tag=partition_tag(run.old[0].topic, run.old[0].partition_id)) for run in runs]


def _build_object(runs: Sequence[_MergeRun], segments: Sequence[EncodedSegment]) -> bytes:
    entries, pieces, at = [], [], 0
    for run, segment in zip(runs, segments, strict=True):
        first = run.old[0]
        blocks = [(location.size, location.records) for location in segment.index]
        entries.append(SegmentEntry(first.topic, first.partition_id, first.base_offset, at, blocks))
        pieces += segment.blocks
        at += segment.size
    return b"".join([*pieces, encode_footer(entries)])


def _drafts(uri: str, runs: Sequence[_MergeRun], segments: Sequence[EncodedSegment]) -> list[SegmentDraft]:
    location = parse(uri)
    bucket = location.root or LOCAL_BUCKET
    drafts, at = [], 0
    for run, segment in zip(runs, segments, strict=True):
        first, last = run.old[0], run.old[-1]
        drafts.append(
            SegmentDraft(
                first.topic, first.partition_id, first.base_offset, last.end_offset, segment.records, segment.size,
                bucket, location.key, at, segment.min_timestamp, segment.max_timestamp, segment.index.encode(),
            )
        )  # fmt: skip
        at += segment.size
    return drafts


def _name(segment: Segment) -> str:
    return f"{segment.topic}/{segment.partition_id}/{segment.base_offset}"
