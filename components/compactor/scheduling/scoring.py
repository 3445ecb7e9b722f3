"""When a partition is worth a compaction: what is gained, in files that nobody opens any more, for what is rewritten.

The files to merge are the smallest ones, as many of them as still pay: the largest is no larger than half of all the
others together, so that every byte is rewritten only when its file grows threefold; or all of them fill a right-sized
file, which leaves the game for good. Both keep the bytes rewritten for a byte inserted logarithmic, and the number
of small files that are left too.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from components.compactor.scheduling.counters import Cell, PartitionCounts, Tiers
from components.compactor.scheduling.policy import MIB, Policy

MANY = "many small files"
FILLS = "enough for a full file"
YOUNG = "files are too young"
DEAR = "too dear"
DISABLED = "disabled"
SETTINGS = "settings can't be read"
QUIET = "quiet hours"
OVER = "no longer needed"

DEAREST = 4
"""Target sizes rewritten for one file less: beyond, it is not worth it."""

Standing: TypeAlias = Literal["waiting", "declined"]


class Heap(msgspec.Struct, frozen=True, gc=False):
    """Files that could be merged together."""

    files: int = 0
    size_bytes: int = 0
    largest: int = 0
    fresh: int = 0  # not brought by a compaction

    def outputs(self, policy: Policy) -> int:
        """Files that it becomes: as near to the target as can be, none of them small if that can be had."""
        wanted = max(1, int(self.size_bytes / policy.target_bytes + 0.5))
        return wanted - 1 if wanted > 1 and self.size_bytes / wanted < policy.small_bytes else wanted

    def removed(self, policy: Policy) -> int:
        return self.files - self.outputs(policy)

    def score(self, policy: Policy) -> float:
        """Files removed for a MiB rewritten."""
        return self.removed(policy) / max(self.size_bytes / MIB, 1 / 1024)

    def rule(self, policy: Policy) -> str | None:
        """By which it is worth a compaction, if it is. What compactions have made is not made again by itself."""
        removed = self.removed(policy)
        if self.files < policy.min_inputs or not self.fresh or removed <= 0:
            return None
        if self.size_bytes > removed * DEAREST * policy.target_bytes:
            return None
        if self.size_bytes >= policy.target_bytes:
            return FILLS
        return MANY if self.largest <= policy.largest_share * (self.size_bytes - self.largest) else None


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """On a partition that has small files enough to be looked at."""

    status: Standing
    rule: str
    reason: str | None = None  # without numbers that change all the time: a decision is kept when this changes
    small: Heap  # all small files
    picked: Heap = Heap()  # those to merge, as far as tiers tell
    score: float = 0.0
    until_ms: int | None = None  # to be looked at again then


def judge(
    counts: PartitionCounts, policy: Policy, now_ms: int, *, ripe_at: int | None = None, problem: str | None = None
) -> Verdict | None:
    """None for what is not worth a word. ``counts`` have aged; ``ripe_at`` says when the next files will have."""
    everything = counts.all_tiers() if counts.young() else counts.aged()
    small = _small(everything, policy)
    if small.files < policy.min_inputs or not small.fresh:
        return None
    if problem is not None:
        return Verdict(status="declined", rule=SETTINGS, reason=problem, small=small)
    if not policy.enabled:
        reason = "compaction.enabled is false for this table"
        return Verdict(status="declined", rule=DISABLED, reason=reason, small=small)
    picked, rule = pick(counts.aged(), policy)
    if rule is None:
        _, later = pick(everything, policy)
        if later is not None:
            reason = f"files have to be {policy.min_age_ms / 1000:g} s old"
            return Verdict(status="declined", rule=YOUNG, reason=reason, small=small, until_ms=ripe_at)
        reason = "too much would be rewritten for each file less; more small files will change that"
        return Verdict(status="declined", rule=DEAR, reason=reason, small=small, until_ms=ripe_at)
    quiet = None if policy.quiet_hours is None else policy.quiet_hours.until_ms(now_ms)
    return Verdict(
        status="waiting",
        rule=rule,
        reason=None if quiet is None else f"{QUIET}: {policy.quiet_hours}",
        small=small,
        picked=picked,
        score=picked.score(policy),
        until_ms=quiet,
    )


def pick(tiers: Tiers, policy: Policy) -> tuple[Heap, str | None]:
    """The most of the smallest tiers that is worth it, and by which rule. What passes here passes file by file, too."""
    found, by = Heap(), None
    heap = Heap()
    for tier in sorted(tiers):
        cell = tiers[tier]
        if not _is_small(cell, policy):
            break
        heap = Heap(
            heap.files + cell.files, heap.size_bytes + cell.size_bytes, cell.largest, heap.fresh + cell.files - cell.own
        )
        if (rule := heap.rule(policy)) is not None:
            found, by = heap, rule
    return found, by


def _small(tiers: Tiers, policy: Policy) -> Heap:
    cells = [cell for cell in tiers.values() if _is_small(cell, policy)]
    return Heap(
        sum(cell.files for cell in cells),
        sum(cell.size_bytes for cell in cells),
        max((cell.largest for cell in cells), default=0),
        sum(cell.files - cell.own for cell in cells),
    )


def _is_small(cell: Cell, policy: Policy) -> bool:
    """Of a tier that the limit goes through, the mean decides. (The usual limit, 3/4 of 2^n, goes between two.)"""
    return cell.size_bytes // cell.files < policy.small_bytes
