"""Which segments of a partition to merge: neighbours that are small, and that are worth it.

A run grows from young to old for as long as the next one is not larger than all that are younger than it. So a segment
is written again only when as much has come after it, and a record is merged about as often as its partition doubles
between one append and a full-sized segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from registry.models import Segment


@dataclass(frozen=True, slots=True)
class MergePolicy:
    small_bytes: int = 4 << 20  # what is larger stays as it is
    target_bytes: int = 16 << 20  # of one merged segment, about
    fewest: int = 8  # segments that are worth a merge
    settled_ms: int = 10_000  # the tail is left to those who write and read it just now


def choose(segments: Sequence[Segment], policy: MergePolicy, now_ms: int) -> list[list[Segment]]:
    """Runs of neighbours that are worth a merge, oldest first. ``segments`` are some of a partition's, by offset."""
    found = [run for run in _runs(segments, policy, now_ms) if len(run) >= policy.fewest]
    found.reverse()
    return found


def left_over(segments: Sequence[Segment], policy: MergePolicy) -> int:
    """How many segments at the end, young ones too, would be part of a run if only there were more of them."""
    last = next(_runs(segments, policy, segments[-1].created_at + policy.settled_ms), []) if segments else []
    return len(last) if last and len(last) < policy.fewest and last[-1] is segments[-1] else 0


def _runs(segments: Sequence[Segment], policy: MergePolicy, now_ms: int) -> Iterator[list[Segment]]:
    """Youngest first; of one segment, too."""
    run: list[Segment] = []  # youngest first
    size = 0
    for segment in reversed(segments):
        eligible = segment.size_bytes < policy.small_bytes and now_ms - segment.created_at >= policy.settled_ms
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
    """How many small segments have come to each partition since it was last looked at: counted from the events."""

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

    def take(self, most: int) -> list[tuple[str, int]]:
        """Partitions that may have a run to merge; they are counted anew from here on."""
        due = [key for key, count in self._counts.items() if count >= self._policy.fewest][:most]
        for key in due:
            del self._counts[key]
        return due

    def put_back(self, keys: Iterable[tuple[str, int]]) -> None:
        """They were not merged after all: look again."""
        for key in keys:
            self._counts[key] = max(self._counts.get(key, 0), self._policy.fewest)

    def leave(self, left: Mapping[tuple[str, int], int]) -> None:
        """So many of each are still there, and count with those that will come."""
        for key, count in left.items():
            if count:
                self._counts[key] = self._counts.get(key, 0) + count

    def forget(self, topic: str) -> None:
        for key in [key for key in self._counts if key[0] == topic]:
            del self._counts[key]
