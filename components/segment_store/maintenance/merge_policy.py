"""Chooses segments to merge: runs of small adjacent segments of a partition.

A run grows from young to old while the next segment is not larger than all younger ones together. So a segment is
rewritten only when as many bytes have come after it, and a record is merged about as often as its partition doubles
between one append and a full-sized segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from registry.models import Segment


@dataclass(frozen=True, slots=True)
class MergePolicy:
    small_bytes: int = 4 << 20  # larger segments are not merged
    target_bytes: int = 16 << 20  # of a merged segment, about
    min_segments: int = 8  # per run
    min_age_ms: int = 10_000  # younger segments are being written and read


def choose_runs(segments: Sequence[Segment], policy: MergePolicy, now_ms: int) -> list[list[Segment]]:
    """Returns runs to merge, oldest first. ``segments`` are consecutive segments of a partition, by offset."""
    found = [run for run in _runs(segments, policy, now_ms) if len(run) >= policy.min_segments]
    found.reverse()
    return found


def count_leftovers(segments: Sequence[Segment], policy: MergePolicy) -> int:
    """Returns the length of the run at the end, whatever its age, if it is still too short to merge."""
    last = next(_runs(segments, policy, segments[-1].created_at + policy.min_age_ms), []) if segments else []
    return len(last) if last and len(last) < policy.min_segments and last[-1] is segments[-1] else 0


def _runs(segments: Sequence[Segment], policy: MergePolicy, now_ms: int) -> Iterator[list[Segment]]:
    """Yields all runs, also of one segment, youngest first."""
    run: list[Segment] = []  # youngest first
    size = 0
    for segment in reversed(segments):
        eligible = segment.size_bytes < policy.small_bytes and now_ms - segment.created_at >= policy.min_age_ms
        joins = (
            eligible
            and bool(run)
            and segment.end_offset + 1 == run[-1].base_offset
            and segment.size_bytes <= size
            and size + segment.size_bytes <= policy.target_bytes
        )
        if not joins:
            if run:
                yield run[::-1]
            run, size = [], 0
        if eligible:
            run.append(segment)
            size += segment.size_bytes
    if run:
        yield run[::-1]


class SmallSegments:
    """Counts, from events, the small segments that were added to each partition since its last merge."""

    def __init__(self, policy: MergePolicy) -> None:
        self._policy = policy
        self._counts: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def clear(self) -> None:
        self._counts.clear()

    def add(self, segments: Iterable[Segment]) -> None:
        counts, small = self._counts, self._policy.small_bytes
        for segment in segments:
            if segment.size_bytes < small:
                key = (segment.topic, segment.partition_id)
                counts[key] = counts.get(key, 0) + 1

    def take_due(self, limit: int) -> list[tuple[str, int]]:
        """Returns up to `limit` partitions that may have a run to merge, and resets their counts."""
        due = [key for key, count in self._counts.items() if count >= self._policy.min_segments][:limit]
        for key in due:
            del self._counts[key]
        return due

    def put_back(self, keys: Iterable[tuple[str, int]]) -> None:
        """These partitions have to be looked at again."""
        for key in keys:
            self._counts[key] = max(self._counts.get(key, 0), self._policy.min_segments)

    def add_leftovers(self, left: Mapping[tuple[str, int], int]) -> None:
        """Adds small segments that a merge has left."""
        for key, count in left.items():
            if count:
                self._counts[key] = self._counts.get(key, 0) + count

    def forget(self, topic: str) -> None:
        for key in [key for key in self._counts if key[0] == topic]:
            del self._counts[key]
