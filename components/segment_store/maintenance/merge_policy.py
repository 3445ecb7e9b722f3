"""Chooses segments to merge: runs of small adjacent segments of a partition.

A run grows from young to old while the next segment is not larger than all younger ones together. So a segment is
rewritten only when as many bytes have come after it, and a record is merged about as often as its partition doubles
between one append and a full-sized segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from registry.models import Segment

MAX_OFFSET = 2**63 - 1

_MAX_RUNS = 250  # per look


@dataclass(frozen=True, slots=True)
class MergePolicy:
    small_bytes: int = 4 << 20  # larger segments are not merged
    target_bytes: int = 16 << 20  # of a merged segment, about
    min_segments: int = 8  # per run
    min_age_ms: int = 10_000  # younger segments are being written and read
    max_segments: int = 4_000  # per run


class RunFinder:
    """Finds the runs to merge in consecutive segments of a partition, given from young to old.

    `runs`: those found so far, youngest first, each with its segments by offset.
    """

    def __init__(self, policy: MergePolicy, now_ms: int) -> None:
        self._policy = policy
        self._now_ms = now_ms
        self._run: list[Segment] = []  # youngest first
        self._run_bytes = 0
        self._closed: list[list[Segment]] = []
        self._closed_bytes = 0

    def add(self, segment: Segment) -> bool:
        """Returns whether the segment extends the run of the segments before it."""
        policy, run = self._policy, self._run
        eligible = segment.size_bytes < policy.small_bytes and self._now_ms - segment.created_at >= policy.min_age_ms
        extends = (
            eligible
            and bool(run)
            and len(run) < policy.max_segments
            and segment.end_offset + 1 == run[-1].base_offset
            and segment.size_bytes <= self._run_bytes
            and self._run_bytes + segment.size_bytes <= policy.target_bytes
        )
        if not extends:
            if self._is_long_enough:
                self._closed.append(run[::-1])
                self._closed_bytes += self._run_bytes
            self._run, self._run_bytes = [], 0
        if eligible:
            self._run.append(segment)
            self._run_bytes += segment.size_bytes
        return extends

    @property
    def runs(self) -> list[list[Segment]]:
        return [*self._closed, self._run[::-1]] if self._is_long_enough else list(self._closed)

    @property
    def count(self) -> int:
        """The number of segments in `runs`."""
        return sum(map(len, self.runs))

    @property
    def fills_object(self) -> bool:
        """Whether the runs that can't grow any more are enough for an object."""
        return self._closed_bytes >= self._policy.target_bytes or len(self._closed) >= _MAX_RUNS

    @property
    def open_run(self) -> int:
        """The length of the run that the last segment belongs to."""
        return len(self._run)

    @property
    def _is_long_enough(self) -> bool:
        return len(self._run) >= self._policy.min_segments


def choose_runs(segments: Sequence[Segment], policy: MergePolicy, now_ms: int) -> list[list[Segment]]:
    """Returns runs to merge, oldest first. ``segments`` are consecutive segments of a partition, by offset."""
    finder = RunFinder(policy, now_ms)
    for segment in reversed(segments):
        finder.add(segment)
    return finder.runs[::-1]


class _Added(msgspec.Struct):
    """Small segments of a partition: how many, and the base offset of the first."""

    count: int = 0
    first_offset: int = MAX_OFFSET


class SmallSegments:
    """Counts, from events, the small segments that were added to each partition since its last merge."""

    def __init__(self, policy: MergePolicy) -> None:
        self._policy = policy
        self._added: dict[tuple[str, int], _Added] = {}

    def __len__(self) -> int:
        return len(self._added)

    def clear(self) -> None:
        self._added.clear()

    def add(self, segments: Iterable[Segment]) -> None:
        small = self._policy.small_bytes
        for segment in segments:
            if segment.size_bytes < small:
                added = self._of((segment.topic, segment.partition_id))
                added.count += 1
                added.first_offset = min(added.first_offset, segment.base_offset)

    def take_due(self, limit: int) -> dict[tuple[str, int], int]:
        """Returns up to `limit` partitions that may have a run to merge, and resets their counts. The value is the
        offset from which on they have new small segments.
        """
        due = [key for key, added in self._added.items() if added.count >= self._policy.min_segments][:limit]
        return {key: self._added.pop(key).first_offset for key in due}

    def put_back(self, partitions: Mapping[tuple[str, int], int]) -> None:
        """These partitions have to be looked at again, from these offsets on."""
        for key, offset in partitions.items():
            added = self._of(key)
            added.count = max(added.count, self._policy.min_segments)
            added.first_offset = min(added.first_offset, offset)

    def add_leftovers(self, left: Mapping[tuple[str, int], int]) -> None:
        """Adds small segments at the end that a merge has left: the next run begins there, whatever the offset."""
        for key, count in left.items():
            if count:
                self._of(key).count += count

    def forget(self, topic: str) -> None:
        for key in [key for key in self._added if key[0] == topic]:
            del self._added[key]

    def _of(self, key: tuple[str, int]) -> _Added:
        added = self._added.get(key)
        if added is None:
            added = self._added[key] = _Added()
        return added
