"""The plan of a partition: which of its files are merged, and in which groups.

The counters have decided that it is worth a plan; here the same rules are applied to every file. The chosen files are
divided into groups of at most the policy's size, in the order in which they were registered, so that what was written
together stays together.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from components.compactor.merge import Strategy, choose_strategy
from components.compactor.planning.partition_deletes import NO_DELETES, PartitionDeletes
from components.compactor.scheduling.counters import COUNTED_TYPE
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.scoring import (
    DELETED_ROWS,
    DISABLED,
    NO_LONGER_NEEDED,
    QUIET,
    TOO_EXPENSIVE,
    YOUNG,
    CompactionVerdict,
    FileSet,
)
from registry.json_text import JsonText, JsonValue, to_json_text
from registry.models import TableFile

MOST_FILES = 20_000
"""Per plan, to bound its memory. Further files are left to the next plan."""

MOST_GROUPS_SHOWN = 20  # in an explanation

MOST_IN_GROUP = 5_000

REQUESTED = "requested"
BAD_FILES = "files can't be read"
OTHER_SPEC = "another partition spec"
UNWRITABLE = "its schema can't be written"


class FileGroup(msgspec.Struct, frozen=True):
    files: tuple[TableFile, ...]
    outputs: int  # files to write
    target_bytes: int  # of each output, at the present compression

    @property
    def size_bytes(self) -> int:
        return sum(file.file_size for file in self.files)


class CompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Without groups, `rule` and `reason` say why, and `ripe_at` when to plan again if time alone changes it."""

    groups: tuple[FileGroup, ...] = ()
    rule: str
    reason: str | None = None
    strategy: Strategy = "auto"
    why: str = ""  # of the strategy
    score: float = 0.0
    small: int = 0  # small files
    young: int = 0  # small files below the minimum age
    left: int = 0  # small files beyond `MOST_FILES`
    left_out: int = 0  # files that can't be read
    ripe_at: int | None = None
    has_deletes: bool = False  # delete files apply to the partition

    @property
    def input_files(self) -> int:
        return sum(len(group.files) for group in self.groups)

    @property
    def input_bytes(self) -> int:
        return sum(group.size_bytes for group in self.groups)

    def verdict(self) -> CompactionVerdict:
        """Returns the decision about the partition that follows from a plan without groups."""
        small = FileSet(self.small + self.young)
        return CompactionVerdict(
            status="declined", rule=self.rule, reason=self.reason, small=small, until_ms=self.ripe_at
        )

    def explanation(self, policy: CompactionPolicy, decided: JsonText | None = None) -> JsonText:
        """Returns it for the journal. ``decided`` is the explanation of the decision before it."""
        files, size = self.input_files, self.input_bytes
        outputs = sum(group.outputs for group in self.groups)
        record: dict[str, JsonValue] = {
            "rule": self.rule,
            "strategy": self.strategy,
            "why": self.why,
            "counts": {"small": self.small, "young": self.young, "left_for_later": self.left, "inputs": files},
            "cost": {"bytes_rewritten": size, "bytes_per_file_removed": size // max(files - outputs, 1)},
            "outputs": outputs,
            "score": round(self.score, 6),
            "groups": [
                {"files": len(group.files), "bytes": group.size_bytes, "outputs": group.outputs}
                for group in self.groups[:MOST_GROUPS_SHOWN]
            ],
            "policy": policy.shown(),
        }
        if self.left_out:
            record["left_out"] = self.left_out
        if len(self.groups) > MOST_GROUPS_SHOWN:
            record["groups_in_all"] = len(self.groups)
        if decided is not None:
            record["decision"] = decided
        return to_json_text(record)


class FileSelection:
    """The small files of a partition, collected from its rows."""

    def __init__(
        self,
        policy: CompactionPolicy,
        now_ms: int,
        *,
        forced: bool = False,
        bad: Mapping[str, str] = MappingProxyType({}),
        versions: frozenset[int] | None = None,
        deletes: PartitionDeletes = NO_DELETES,
    ) -> None:
        """``bad`` maps files that are known to be unreadable to the reason. ``versions`` are the schema versions whose
        files can be merged: those with the current partition spec; None: all.
        """
        self.now_ms = now_ms
        self.deletes = deletes
        self._named = deletes.named
        self._newest_deletes_ms = deletes.newest_ms
        self._versions = versions
        self.rows = 0  # of all files
        self.other_spec = 0  # files with another partition spec
        self.with_deletes: dict[str, TableFile] = {}  # files that delete files may name, by path
        self._bad = bad
        self.left_out: dict[str, str] = {}  # the bad files that the partition still has
        self._policy = policy
        self._forced = forced
        self._oldest_ms = now_ms - (0 if forced else policy.min_age_ms)
        self.files: list[TableFile] = []
        self.young = 0
        self.left = 0
        self.ripe_at: int | None = None

    def add(self, file: TableFile) -> None:
        self.rows += file.row_count
        if file.file_type != COUNTED_TYPE:
            return
        if self._versions is not None and file.schema_version not in self._versions:
            self.other_spec += 1
            return
        small, may_have_deletes = file.file_size < self._policy.small_bytes, self._may_have_deletes(file)
        if not small and not may_have_deletes:
            return
        if file.file_path in self._bad:
            self.left_out[file.file_path] = self._bad[file.file_path]
            return
        if may_have_deletes and len(self.with_deletes) < MOST_FILES:
            self.with_deletes[file.file_path] = file
        if small:
            self._add_small(file)

    @property
    def deleted(self) -> bool:
        """Whether enough rows are deleted to rewrite the files that have them."""
        if not self.with_deletes:
            return False
        return self._forced or self.deletes.rows >= self._policy.delete_ratio * self.rows

    def _may_have_deletes(self, file: TableFile) -> bool:
        """What a compaction wrote after the delete files has none of their rows."""
        if not self.deletes or (file.operation == "compaction" and file.created_at > self._newest_deletes_ms):
            return False
        return self._named is None or file.file_path in self._named

    def _add_small(self, file: TableFile) -> None:
        if self._policy.min_age_ms and not self._forced and file.created_at > self._oldest_ms:
            self.young += 1
            ripe_at = file.created_at + self._policy.min_age_ms
            self.ripe_at = ripe_at if self.ripe_at is None else min(self.ripe_at, ripe_at)
        elif len(self.files) == MOST_FILES:
            self.left += 1
        else:
            self.files.append(file)


async def select_files(
    files: AsyncIterator[TableFile],
    policy: CompactionPolicy,
    now_ms: int,
    *,
    forced: bool = False,
    bad: Mapping[str, str] = MappingProxyType({}),
    versions: frozenset[int] | None = None,
    deletes: PartitionDeletes = NO_DELETES,
) -> FileSelection:
    selection = FileSelection(policy, now_ms, forced=forced, bad=bad, versions=versions, deletes=deletes)
    async for file in files:
        selection.add(file)
    return selection


def make_plan(
    selection: FileSelection, policy: CompactionPolicy, *, order_columns: int, forced: bool = False
) -> CompactionPlan:
    """``forced``: merges any two small files, whatever it costs, also in quiet hours.

    Checks the settings again: the decision may have used older ones, or the defaults.
    """
    small, young, left = len(selection.files), selection.young, selection.left
    if not forced and not policy.enabled:
        return CompactionPlan(
            rule=DISABLED, reason="compaction.enabled is false for this table", small=small, young=young
        )
    quiet = None if forced or policy.quiet_hours is None else policy.quiet_hours.until_ms(selection.now_ms)
    if quiet is not None:
        return CompactionPlan(rule=QUIET, reason=f"{policy.quiet_hours}", small=small, young=young, ripe_at=quiet)
    picked, rule = _pick(selection.files, policy, forced=forced)
    with_deletes = selection.with_deletes if selection.deleted else {}
    if with_deletes:
        rule = DELETED_ROWS
        picked = [*with_deletes.values(), *(file for file in picked if file.file_path not in with_deletes)]
    groups = tuple(_grouped(picked, policy, with_deletes)) if rule is not None else ()
    if rule is None or not groups:
        rule, reason = _declined(small, young, policy, selection)
        return CompactionPlan(
            rule=rule, reason=reason, small=small, young=young, left=left, left_out=len(selection.left_out),
            ripe_at=selection.ripe_at,
        )  # fmt: skip
    file_set = _file_set(file for group in groups for file in group.files)
    choice = choose_strategy(
        policy.strategy,
        order_columns=order_columns,
        mean_bytes=file_set.size_bytes // max(file_set.files, 1),
        copy_above_bytes=policy.copy_above_bytes,
    )
    return CompactionPlan(
        groups=groups,
        rule=REQUESTED if forced else rule,
        strategy=choice.strategy,
        why=choice.why,
        score=file_set.score(policy),
        small=small + young + left,
        young=young,
        left=left,
        left_out=len(selection.left_out),
        ripe_at=selection.ripe_at,
        has_deletes=bool(selection.deletes),
    )


def _pick(files: Iterable[TableFile], policy: CompactionPolicy, *, forced: bool) -> tuple[list[TableFile], str | None]:
    ordered = sorted(files, key=lambda file: (file.file_size, file.id))
    if forced:
        return ordered, REQUESTED if len(ordered) > 1 else None
    size = fresh = best = 0
    by: str | None = None
    for count, file in enumerate(ordered, 1):
        size += file.file_size
        fresh += file.operation != "compaction"
        if (rule := FileSet(count, size, file.file_size, fresh).rule(policy)) is not None:
            best, by = count, rule
    return ordered[:best], by


def _grouped(
    files: Sequence[TableFile], policy: CompactionPolicy, with_deletes: Collection[str] = ()
) -> Iterable[FileGroup]:
    """Yields groups of about the same size, none above the policy's limit, in the order of the files' ids. Files
    ``with_deletes`` are rewritten even if they don't become fewer.
    """
    total = sum(file.file_size for file in files)
    count = -(-total // policy.max_group_bytes)
    share = total / count if count > 1 else math.inf  # one group takes all, empty files at its end too
    collected: list[TableFile] = []
    size = 0
    for file in sorted(files, key=lambda file: file.id):
        full = size + file.file_size > policy.max_group_bytes or len(collected) == MOST_IN_GROUP
        if collected and (full or size + file.file_size / 2 >= share):
            yield from _group(collected, policy, with_deletes)
            collected, size = [], 0
        collected.append(file)
        size += file.file_size
    yield from _group(collected, policy, with_deletes)


def _group(files: Sequence[TableFile], policy: CompactionPolicy, with_deletes: Collection[str]) -> Iterable[FileGroup]:
    file_set = _file_set(files)
    outputs = file_set.outputs(policy)
    if len(files) > outputs or any(file.file_path in with_deletes for file in files):
        even = -(-file_set.size_bytes // outputs)  # so that the last output is not small
        yield FileGroup(tuple(files), outputs, even if outputs > 1 else max(even, policy.target_bytes))


def _file_set(files: Iterable[TableFile]) -> FileSet:
    listed = list(files)
    sizes = [file.file_size for file in listed]
    fresh = sum(file.operation != "compaction" for file in listed)
    return FileSet(len(listed), sum(sizes), max(sizes, default=0), fresh)


def _declined(small: int, young: int, policy: CompactionPolicy, selection: FileSelection) -> tuple[str, str]:
    left_out = selection.left_out
    if left_out and small + young < policy.min_inputs:
        path, reason = next(iter(left_out.items()))
        return BAD_FILES, f"{len(left_out):,} left out, such as {path}: it {reason}"
    if selection.other_spec and small + young < policy.min_inputs:
        return OTHER_SPEC, (
            "its files have an older partition spec of the table, and only an engine that writes the current one can "
            "move their rows: rewrite_data_files"
        )
    if small + young < policy.min_inputs:
        return NO_LONGER_NEEDED, "there are too few small files left"
    if young:
        return YOUNG, f"files have to be {policy.min_age_ms / 1000:g} s old"
    return TOO_EXPENSIVE, "too many bytes would be rewritten for each file removed; more small files will change that"
