"""When a partition is worth a compaction: how many files are removed for the bytes that are rewritten.

The smallest files are merged, as many as are worth it: either the largest is at most half as large as all the others
together, so that a byte is rewritten only when its file grows threefold; or all of them fill a file of target size,
which is never compacted again. Both keep the bytes rewritten per byte inserted, and the number of small files that are
left, logarithmic.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from components.compactor.scheduling.counters import Cell, PartitionCounts, Tiers
from components.compactor.scheduling.delete_counts import DeleteTotals
from components.compactor.scheduling.policy import MIB, CompactionPolicy

MANY = "many small files"
FILLS = "enough for a full file"
YOUNG = "files are too young"
TOO_EXPENSIVE = "too expensive"
DISABLED = "disabled"
SETTINGS = "settings can't be read"
QUIET = "quiet hours"
NO_LONGER_NEEDED = "no longer needed"
DELETED_ROWS = "many deleted rows"
DELETE_FILES = "delete files can't be applied"

MOST_TARGETS_PER_FILE = 4
"""Most bytes rewritten per file removed, in target sizes."""

VerdictStatus: TypeAlias = Literal["waiting", "declined"]


class FileSet(msgspec.Struct, frozen=True, gc=False):
    """Files that could be merged together."""

    files: int = 0
    size_bytes: int = 0
    largest: int = 0
    fresh: int = 0  # not written by a compaction

    def outputs(self, policy: CompactionPolicy) -> int:
        """Returns the number of output files: as close to the target size as possible, and not small."""
        wanted = max(1, int(self.size_bytes / policy.target_bytes + 0.5))
        return wanted - 1 if wanted > 1 and self.size_bytes / wanted < policy.small_bytes else wanted

    def removed(self, policy: CompactionPolicy) -> int:
        return self.files - self.outputs(policy)

    def score(self, policy: CompactionPolicy) -> float:
        """Returns the files removed per MiB rewritten."""
        return self.removed(policy) / max(self.size_bytes / MIB, 1 / 1024)

    def rule(self, policy: CompactionPolicy) -> str | None:
        """Returns the rule by which it is worth a compaction, or None. Outputs of compactions alone are never merged
        again.
        """
        removed = self.removed(policy)
        if self.files < policy.min_inputs or not self.fresh or removed <= 0:
            return None
        if self.size_bytes > removed * MOST_TARGETS_PER_FILE * policy.target_bytes:
            return None
        if self.size_bytes >= policy.target_bytes:
            return FILLS
        return MANY if self.largest <= policy.largest_share * (self.size_bytes - self.largest) else None


class CompactionVerdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The decision about a partition that has enough small files."""

    status: VerdictStatus
    rule: str
    reason: str | None = None  # without counts: a decision is recorded again when this changes
    small: FileSet  # all small files
    picked: FileSet = FileSet()  # those to merge, by tiers
    score: float = 0.0
    until_ms: int | None = None  # when to decide again


def judge(
    counts: PartitionCounts,
    policy: CompactionPolicy,
    now_ms: int,
    *,
    ripe_at: int | None = None,
    problem: str | None = None,
    deletes: DeleteTotals | None = None,
) -> CompactionVerdict | None:
    """Returns None if there are too few small files, and too few deleted rows. ``ripe_at`` is when the next files reach
    the minimum age.
    """
    everything = counts.all_tiers() if counts.young() else counts.aged()
    small = _small(everything, policy)
    deletes = deletes or DeleteTotals()
    if deletes.reason is not None:
        return CompactionVerdict(status="declined", rule=DELETE_FILES, reason=deletes.reason, small=small)
    share = deletes.share_of(counts.rows)
    deleted = deletes.rows > 0 and share >= policy.delete_ratio
    if not deleted and (small.files < policy.min_inputs or not small.fresh):
        return None
    if problem is not None:
        return CompactionVerdict(status="declined", rule=SETTINGS, reason=problem, small=small)
    if not policy.enabled:
        reason = "compaction.enabled is false for this table"
        return CompactionVerdict(status="declined", rule=DISABLED, reason=reason, small=small)
    picked, rule = pick(counts.aged(), policy)
    score = picked.score(policy)
    if deleted:
        picked, rule = FileSet(counts.files, counts.size_bytes, 0, counts.files), DELETED_ROWS
        score = max(score, share)
    if rule is None:
        _, later = pick(everything, policy)
        if later is not None:
            reason = f"files have to be {policy.min_age_ms / 1000:g} s old"
            return CompactionVerdict(status="declined", rule=YOUNG, reason=reason, small=small, until_ms=ripe_at)
        reason = "too many bytes would be rewritten for each file removed; more small files will change that"
        return CompactionVerdict(status="declined", rule=TOO_EXPENSIVE, reason=reason, small=small, until_ms=ripe_at)
    quiet = None if policy.quiet_hours is None else policy.quiet_hours.until_ms(now_ms)
    return CompactionVerdict(
        status="waiting",
        rule=rule,
        reason=None if quiet is None else f"{QUIET}: {policy.quiet_hours}",
        small=small,
        picked=picked,
        score=score,
        until_ms=quiet,
    )


def pick(tiers: Tiers, policy: CompactionPolicy) -> tuple[FileSet, str | None]:
    """Returns the most of the smallest tiers that is worth it, and the rule. The same rules then hold file by file."""
    found, by = FileSet(), None
    file_set = FileSet()
    for tier in sorted(tiers):
        cell = tiers[tier]
        if not _is_small(cell, policy):
            break
        file_set = FileSet(
            file_set.files + cell.files,
            file_set.size_bytes + cell.size_bytes,
            cell.largest,
            file_set.fresh + cell.files - cell.own,
        )
        if (rule := file_set.rule(policy)) is not None:
            found, by = file_set, rule
    return found, by


def _small(tiers: Tiers, policy: CompactionPolicy) -> FileSet:
    cells = [cell for cell in tiers.values() if _is_small(cell, policy)]
    return FileSet(
        sum(cell.files for cell in cells),
        sum(cell.size_bytes for cell in cells),
        max((cell.largest for cell in cells), default=0),
        sum(cell.files - cell.own for cell in cells),
    )


def _is_small(cell: Cell, policy: CompactionPolicy) -> bool:
    """The mean size decides in a tier that contains the limit. The usual limit, 3/4 of 2^n, lies between two tiers."""
    return cell.size_bytes // cell.files < policy.small_bytes
