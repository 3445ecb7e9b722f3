"""The segments of one partition that are in memory: a sorted map of blocks, each a pair of plain lists.

Why not a `SortedDict` of segments: its public ``bisect`` and ``peekitem`` cost 4 to 8 times a bare ``bisect``
on a list, before anything else. Here the `SortedDict` holds blocks of up to a thousand segments, and both
the choice of the block and the search in it are one C ``bisect`` on a list. A cursor remembers where the last
answer was, so that a reader who walks forward is answered without any search.

Segments in memory never overlap. When a new one overlaps others, the highest id stays: ids only grow, so a
segment that a merge has made wins over the ones it replaced, even if their events arrive late.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from sortedcontainers import SortedDict

from registry.models import Segment

BLOCK = 1_024
"""Segments in a block at most; also what is evicted together."""

NOWHERE = Segment(
    id=0, topic="", partition_id=0, base_offset=0, end_offset=-1, record_count=0, size_bytes=0,
    s3_bucket="", s3_key="", byte_offset=0, created_at=0,
)  # fmt: skip
"""Holds no offset: where the cursor stands when it stands nowhere."""


class Block:
    """``bases[i]`` is ``segments[i].base_offset``. ``used`` grows with each search that ends here."""

    __slots__ = ("bases", "segments", "used")

    def __init__(self, segments: list[Segment], used: int) -> None:
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.used = used


NO_BLOCK = Block([], 0)


class SegmentBlocks:
    """Everything here is synchronous. `SegmentIndex.lookup` reads the public attributes directly, for speed.

    A block's key is its first base: a lower one could hide the end of a segment in the block before.
    """

    __slots__ = (
        "_block_size", "_by_key", "_max_segments", "block", "blocks", "current", "evictions", "firsts",
        "hits", "hits_at_sweep", "index", "more", "size", "tick",
    )  # fmt: skip

    def __init__(self, max_segments: int) -> None:
        if max_segments < 4:
            raise ValueError(f"max_segments = {max_segments}: a partition needs room for at least 4 segments")
        self._max_segments = max_segments
        self._block_size = max(1, min(BLOCK, max_segments // 4))
        self._by_key: SortedDict[int, Block] = SortedDict()
        self.firsts: list[int] = []  # the map's keys and values once more, for the C bisect
        self.blocks: list[Block] = []
        self.size = 0
        self.evictions = 0
        self.hits = 0
        self.hits_at_sweep = 0
        self.tick = 0
        self.more = True  # the registry may hold segments beyond the last one held here
        self._forget_cursor()

    def __iter__(self) -> Iterator[Segment]:
        for block in self.blocks:
            yield from block.segments

    @property
    def end(self) -> int:
        """The highest offset held; -1 if there is none."""
        return self.blocks[-1].segments[-1].end_offset if self.blocks else -1

    def search(self, offset: int) -> Segment | None:
        """Find it, and move the cursor there. `SegmentIndex.lookup` does the same in line."""
        blocks = self.blocks
        if len(blocks) == 1:
            block = blocks[0]
        elif not blocks:
            return None
        else:
            block = blocks[bisect_right(self.firsts, offset) - 1]  # before the first: caught by index < 0 below
            block.used = self.tick = self.tick + 1
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
        """Those that hold any offset of ``first..last``, in order."""
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
        """False, and nothing changes, if a segment of a higher id holds some of its offsets."""
        rivals = self.between(segment.base_offset, segment.end_offset) if segment.base_offset <= self.end else ()
        if any(rival.id > segment.id for rival in rivals):
            return False
        for rival in rivals:
            self.remove(rival)
        kept = self._insert(segment)
        self._evict(kept)
        return True

    def cover(self, offset: int, rows: Sequence[Segment]) -> None:
        """Put in a page that was read from ``offset`` on; what it overlaps makes way for it."""
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
        """False if it is not held: another segment with the same base offset stays."""
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

    def _insert(self, segment: Segment) -> Block:
        """Into the block where it belongs, which is split if it is full. It overlaps nothing."""
        base = segment.base_offset
        self.size += 1
        self.tick += 1
        if not self.blocks:
            return self._put(base, Block([segment], self.tick))
        at = bisect_right(self.firsts, base) - 1
        if at < 0:
            at = 0
            self._rekey(0, base)
        block = self.blocks[at]
        index = bisect_right(block.bases, base)
        if len(block.bases) >= self._block_size:
            if index == len(block.bases):  # appended: start a block rather than leave two half empty
                return self._put(base, Block([segment], self.tick))
            block, index = self._split(block, index)
        block.bases.insert(index, base)
        block.segments.insert(index, segment)
        return block

    def _split(self, block: Block, index: int) -> tuple[Block, int]:
        """Halve a full block; where an insertion at ``index`` goes now."""
        half = (len(block.bases) + 1) // 2
        upper = Block(block.segments[half:], block.used)
        if not upper.bases:  # blocks of one: make room in front
            upper = Block(block.segments, block.used)
            block.bases, block.segments, half = [], [], 0
        del block.bases[half:], block.segments[half:]
        self._put(upper.bases[0], upper)
        return (block, index) if index <= half else (upper, index - half)

    def _join(self, at: int) -> None:
        """Merge a block with the next one when both have become sparse."""
        block, following = self.blocks[at], self.blocks[at + 1]
        if len(block.bases) + len(following.bases) <= self._block_size // 2:
            block.bases += following.bases
            block.segments += following.segments
            block.used = max(block.used, following.used)
            self._drop(at + 1)

    def _put(self, key: int, block: Block) -> Block:
        self._by_key[key] = block
        self._reflow()
        return block

    def _rekey(self, at: int, key: int | None = None) -> None:
        """To its first base, or to what is about to be; the order of blocks stays."""
        block = self._by_key.pop(self.firsts[at])
        self.firsts[at] = block.bases[0] if key is None else key
        self._by_key[self.firsts[at]] = block

    def _drop(self, at: int) -> None:
        del self._by_key[self.firsts[at]]
        self._reflow()

    def _reflow(self) -> None:
        self.firsts = list(self._by_key.keys())
        self.blocks = list(self._by_key.values())

    def _evict(self, kept: Block) -> None:
        """Down to the bound, by the least recently used block; never the one in hand, nor the cursor's."""
        while self.size > self._max_segments:
            victims = [at for at, block in enumerate(self.blocks) if block is not kept and block is not self.block]
            at = min(victims, key=lambda at: self.blocks[at].used)
            gone = len(self.blocks[at].bases)
            self.more = self.more or at == len(self.blocks) - 1
            self.size -= gone
            self.evictions += gone
            self._drop(at)

    def _forget_cursor(self) -> None:
        """When something goes. After an insertion ``index`` may be off: that costs a search and no more."""
        self.current = NOWHERE
        self.block = NO_BLOCK
        self.index = -1
