"""Scans of segments that change during planning read each offset once, or raise an error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from astha.settings import Settings
from components.lib.streams.errors import OffsetTooOld
from components.lib.streams.pushdown import UNBOUNDED, Interval, ScanBounds
from components.lib.streams.spark_source import TopicScan
from registry.contract import MetadataStore
from registry.models import Segment


def segment(first: int, end: int, *, size: int = 10, time: int | None = None) -> Segment:
    return Segment(first, "t", 0, first, end - 1, end - first, size, "b", f"{first}-{end}", 0, 1, time, time, None)


class Changing:
    """Streams these segments, and returns `first` for the query of a partition's start."""

    def __init__(self, streamed: Sequence[Segment], first: Sequence[Segment] | None = None) -> None:
        self._streamed = streamed
        self._first = streamed if first is None else first

    async def stream_segments(self, topic: str, partition_id: int, *, from_offset: int = 0) -> AsyncIterator[Segment]:
        for one in self._streamed:
            yield one

    async def get_segments(self, topic: str, partition_id: int, *, limit: int) -> Sequence[Segment]:
        return self._first[:limit]


async def read(
    store: Changing, first: int, end: int, *, split_bytes: int = 25, bounds: ScanBounds = UNBOUNDED
) -> list[int]:
    """Returns the offsets that tasks would read, in order."""
    settings = cast("Settings", None)
    scan = TopicScan("t", (), "earliest", "latest", ("offset",), split_bytes, settings, None, bounds)
    offsets: list[int] = []
    for split in await scan._partition_splits(cast("MetadataStore", store), 0, first, end):
        for one in split.segments:
            offsets += range(max(one.base_offset, split.start), min(one.end_offset + 1, split.stop))
    return offsets


async def test_adjacent_segments() -> None:
    parts = [segment(0, 10), segment(10, 20), segment(20, 30), segment(30, 40)]
    for split_bytes in (1, 25, 1_000):
        assert await read(Changing(parts), 5, 33, split_bytes=split_bytes) == list(range(5, 33))


@pytest.mark.parametrize("merged", [(5, 40), (0, 40), (20, 30), (15, 20)])
async def test_segments_merged_during_planning_are_not_read_twice(merged: tuple[int, int]) -> None:
    rest = [segment(merged[1], 40)] if merged[1] < 40 else []
    for split_bytes in (1, 1_000):
        store = Changing([segment(0, 10), segment(10, 20), segment(*merged), *rest])
        assert await read(store, 0, 40, split_bytes=split_bytes) == list(range(40))


async def test_segments_deleted_during_planning_are_an_error() -> None:
    with pytest.raises(OffsetTooOld, match="the first retained offset is 20"):
        await read(Changing([segment(20, 40)]), 0, 40)
    with pytest.raises(OffsetTooOld, match="the first retained offset is 20"):  # deleted after some were listed
        await read(Changing([segment(0, 10), segment(20, 40)], first=[segment(20, 40)]), 0, 40)


async def test_segments_outside_the_time_range_are_skipped() -> None:
    parts = [segment(0, 10, time=100), segment(10, 20, time=200), segment(20, 30, time=300), segment(30, 40)]
    bounds = ScanBounds(timestamp=Interval(150, 250))
    assert await read(Changing(parts), 0, 40, bounds=bounds) == [*range(10, 20), *range(30, 40)]
