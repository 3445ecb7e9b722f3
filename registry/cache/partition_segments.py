"""The cached segments of one partition: a sorted map of blocks, each a pair of plain lists.

Why not a `SortedDict` of segments: its public ``bisect`` and ``peekitem`` cost 4 to 8 times a bare ``bisect`` on a
list. Here the `SortedDict` holds blocks of up to 1,024 segments, and both the choice of the block and the search in it
are one C ``bisect`` on a list. A cursor remembers the last segment found, so that a sequential reader needs no search.

Cached segments never overlap. When a new one overlaps others, the highest id stays: ids only grow, so a merged segment
wins over those it replaced, even if their events arrive late.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from registry.models import Segment

BLOCK = 1_024
"""Most segments in a block; a block is evicted as a whole."""

NO_SEGMENT = Segment(
    id=0, topic="", partition_id=0, base_offset=0, end_offset=-1, record_count=0, size_bytes=0,
    s3_bucket="", s3_key="", byte_offset=0, created_at=0,
)  # fmt: skip
"""Contains no offset: the value of a cursor that points nowhere."""


class SegmentBlock:
    """``bases[i]`` is ``segments[i].base_offset``. ``last_use`` orders blocks by their last search."""

    __slots__ = ("bases", "last_use", "segments")

    def __init__(self, segments: list[Segment], last_use: int) -> None:
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.last_use = last_use


NO_BLOCK = SegmentBlock([], 0)


class PartitionSegments:
    """Synchronous. `SegmentIndex.lookup` reads the public attributes directly, for speed.

    A block's key is its first base offset: a lower key could hide the end of the last segment in the previous block.
    """

    __slots__ = (
        "_block_size", "_by_key", "_max_segments", "block", "blocks", "current", "evictions", "firsts",
        "hits", "hits_at_last_sweep", "index", "more", "size", "uses",
    )  # fmt: skip

    def __init__(self, max_segments: int) -> None:
        if max_segments < 4:
            raise ValueError(f"max_segments = {max_segments}: a partition needs room for at least 4 segments")
        self._max_segments = max_segments
        self._block_size = max(1, min(BLOCK, max_segments // 4))
        self._by_key: SortedDict[int, SegmentBlock] = SortedDict()
        self.firsts: list[int] = []  # copies of the map's keys and values, for the C bisect
        self.blocks: list[SegmentBlock] = []
        self.size = 0
        self.evictions = 0
        self.hits = 0
        self.hits_at_last_sweep = 0
        self.uses = 0
        self.more = True  # the registry may have segments beyond the last one cached here
        self._forget_cursor()

    def __iter__(self) -> Iterator[Segment]:
        for block in self.blocks:
            yield from block.segments

    @property
    def end(self) -> int:
        """The highest cached offset; -1 if there is none."""
        return self.blocks[-1].segments[-1].end_offset if self.blocks else -1

    def search(self, offset: int) -> Segment | None:
        """Returns the segment that contains ``offset``, or None. `SegmentIndex.lookup` inlines this."""
        blocks = self.blocks
        if len(blocks) == 1:
            block = blocks[0]
        elif not blocks:
            return None
        else:
            block = blocks[bisect_right(self.firsts, offset) - 1]  # if before the first: index < 0 below
            block.last_use = self.uses = self.uses + 1
        index = bisect_right(block.bases, offset) - 1
        if index < 0:
            return None
        segment = block.segments[index]
        if offset > segment.end_offset:
            return None
        self.current = segment
        self.block = block
        self.index = index
        return segment

    def between(self, first: int, last: int) -> list[Segment]:
        """Returns the segments that contain any offset of ``first..last``, in order."""
        found: list[Segment] = []
        if not self.blocks:
            return found
        at = max(bisect_right(self.firsts, first) - 1, 0)
        index = max(bisect_right(self.blocks[at].bases, first) - 1, 0)
        for block in self.blocks[at:]:
            for segment in block.segments[index:]:
                if segment.base_offset > last:
                    return found
                if segment.end_offset >= first:
                    found.append(segment)
            index = 0
        return found

    def add(self, segment: Segment) -> bool:
        """Returns False, and changes nothing, if a segment with a higher id contains some of its offsets."""
        overlapping = self.between(segment.base_offset, segment.end_offset) if segment.base_offset <= self.end else ()
        if any(other.id > segment.id for other in overlapping):
            return False
        for other in overlapping:
            self.remove(other)
        kept = self._insert(segment)
        self._evict(kept)
        return True

    def cover(self, offset: int, rows: Sequence[Segment]) -> None:
        """Adds a page that was read from ``offset`` on, and removes the cached segments that it overlaps."""
        if not rows:
            return
        bases = [row.base_offset for row in rows]
        for held in self.between(bases[0], rows[-1].end_offset):
            at = bisect_right(bases, held.end_offset) - 1
            if at >= 0 and rows[at].end_offset >= held.base_offset:
                self.remove(held)
        for row in rows:
            self._insert(row)
        self.search(offset)
        self._evict(self.block)

    def remove(self, segment: Segment) -> bool:
        """Returns False if it is not cached; another segment with the same base offset stays."""
        if not self.blocks:
            return False
        at = max(bisect_right(self.firsts, segment.base_offset) - 1, 0)
        block = self.blocks[at]
        index = bisect_left(block.bases, segment.base_offset)
        if index == len(block.bases) or block.segments[index].id != segment.id:
            return False
        del block.bases[index], block.segments[index]
        self.size -= 1
        self._forget_cursor()
        if not block.bases:
            self._drop(at)
            return True
        if index == 0:
            self._rekey(at)
        if at + 1 < len(self.blocks):
            self._join(at)
        return True

    def _insert(self, segment: Segment) -> SegmentBlock:
        """Adds a segment that overlaps no other to its block, which is split if full."""
        base = segment.base_offset
        self.size += 1
        self.uses += 1
        if not self.blocks:
            return self._put(base, SegmentBlock([segment], self.uses))
        at = bisect_right(self.firsts, base) - 1
        if at < 0:
            at = 0
            self._rekey(0, base)
        block = self.blocks[at]
        index = bisect_right(block.bases, base)
        if len(block.bases) >= self._block_size:
            if index == len(block.bases):  # appended: start a block instead of leaving two half empty
                return self._put(base, SegmentBlock([segment], self.uses))
            block, index = self._split(block, index)
        block.bases.insert(index, base)
        block.segments.insert(index, segment)
        return block

    def _split(self, block: SegmentBlock, index: int) -> tuple[SegmentBlock, int]:
        """Halves a full block. Returns the block and index for an insertion at ``index``."""
        half = (len(block.bases) + 1) // 2
        upper = SegmentBlock(block.segments[half:], block.last_use)
        if not upper.bases:  # a block of one segment: make room before it
            upper = SegmentBlock(block.segments, block.last_use)
            block.bases, block.segments, half = [], [], 0
        del block.bases[half:], block.segments[half:]
        self._put(upper.bases[0], upper)
        return (block, index) if index <= half else (upper, index - half)

    def _join(self, at: int) -> None:
        """Merges a block with the next one if both are sparse."""
        block, following = self.blocks[at], self.blocks[at + 1]
        if len(block.bases) + len(following.bases) <= self._block_size // 2:
            block.bases += following.bases
            block.segments += following.segments
            block.last_use = max(block.last_use, following.last_use)
            self._drop(at + 1)

    def _put(self, key: int, block: SegmentBlock) -> SegmentBlock:
        self._by_key[key] = block
        self._reflow()
        return block

    def _rekey(self, at: int, key: int | None = None) -> None:
        """Sets a block's key to its first base offset, or to ``key`` before that is inserted. The block order stays."""
        block = self._by_key.pop(self.firsts[at])
        self.firsts[at] = block.bases[0] if key is None else key
        self._by_key[self.firsts[at]] = block

    def _drop(self, at: int) -> None:
        del self._by_key[self.firsts[at]]
        self._reflow()

    def _reflow(self) -> None:
        self.firsts = list(self._by_key.keys())
        self.blocks = list(self._by_key.values())

    def _evict(self, kept: SegmentBlock) -> None:
        """Evicts least recently used blocks down to the limit, but neither ``kept`` nor the cursor's block."""
        while self.size > self._max_segments:
            victims = [at for at, block in enumerate(self.blocks) if block is not kept and block is not self.block]
            at = min(victims, key=lambda at: self.blocks[at].last_use)
            gone = len(self.blocks[at].bases)
            self.more = self.more or at == len(self.blocks) - 1
            self.size -= gone
            self.evictions += gone
            self._drop(at)

    def _forget_cursor(self) -> None:
        """After a removal. After an insertion ``index`` may be off, which only costs a search."""
        self.current = NO_SEGMENT
        self.block = NO_BLOCK
        self.index = -1
