"""Exact groups of files, from a partition's rows as they are now.

The counters have said that it is worth a look; here the same rules are asked for every file. What is picked is divided
into groups of at most the policy's size, in the order in which the files came, so that what was written
together stays together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from components.compactor.merge import Strategy
from components.compactor.scheduling.counters import COUNTED_TYPE
from components.compactor.scheduling.policy import Policy
from components.compactor.scheduling.scoring import DEAR, DISABLED, OVER, QUIET, YOUNG, Heap
from registry.models import TableFile

MOST_FILES = 20_000
"""Of one plan: what is beyond is left to the next one, so that a plan's memory has a bound."""

MOST_IN_GROUP = 5_000

ASKED = "asked for"
BAD_FILES = "files can't be read"


class Group(msgspec.Struct, frozen=True):
    files: tuple[TableFile, ...]
    outputs: int  # files that it should become
    target_bytes: int  # so large each, at the present compression

    @property
    def size_bytes(self) -> int:
        return sum(file.file_size for file in self.files)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """No groups: `rule` and `reason` say why not, and `ripe_at` when to look again if time alone changes it."""

    groups: tuple[Group, ...] = ()
    rule: str
    reason: str | None = None
    strategy: Strategy = "auto"
    why: str = ""  # this strategy
    score: float = 0.0
    small: int = 0  # small files that were looked at
    young: int = 0  # of them, not old enough
    left: int = 0  # beyond what one plan takes
    left_out: int = 0  # files that can't be read
    ripe_at: int | None = None

    @property
    def input_files(self) -> int:
        return sum(len(group.files) for group in self.groups)

    @property
    def input_bytes(self) -> int:
        return sum(group.size_bytes for group in self.groups)


class Selection:
    """The small files of a partition, gathered while its rows stream by."""

    def __init__(
        self, policy: Policy, now_ms: int, *, forced: bool = False, bad: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """``bad`` are files that are known to be unreadable, and why."""
        self.now_ms = now_ms
        self._bad = bad
        self.left_out: dict[str, str] = {}  # of the bad ones, those that are there
        self._policy = policy
        self._forced = forced
        self._oldest_ms = now_ms - (0 if forced else policy.min_age_ms)
        self.files: list[TableFile] = []
        self.young = 0
        self.left = 0
        self.ripe_at: int | None = None

    def add(self, file: TableFile) -> None:
        if file.file_type != COUNTED_TYPE or file.file_size >= self._policy.small_bytes:
            return
        if file.file_path in self._bad:
            self.left_out[file.file_path] = self._bad[file.file_path]
            return
        if self._policy.min_age_ms and not self._forced and file.created_at > self._oldest_ms:
            self.young += 1
            ripe_at = file.created_at + self._policy.min_age_ms
            self.ripe_at = ripe_at if self.ripe_at is None else min(self.ripe_at, ripe_at)
        elif len(self.files) == MOST_FILES:
            self.left += 1
        else:
            self.files.append(file)


async def gather(
    files: AsyncIterator[TableFile],
    policy: Policy,
    now_ms: int,
    *,
    forced: bool = False,
    bad: Mapping[str, str] = MappingProxyType({}),
) -> Selection:
    selection = Selection(policy, now_ms, forced=forced, bad=bad)
    async for file in files:
        selection.add(file)
    return selection


def plan(selection: Selection, policy: Policy, *, has_order: bool, forced: bool = False) -> Plan:
    """``forced``: by hand, for any two small files, whatever it costs and whenever it is.

    Settings are asked again: what was decided may have been by those of before, or by the defaults.
    """
    small, young, left = len(selection.files), selection.young, selection.left
    if not forced and not policy.enabled:
        return Plan(rule=DISABLED, reason="compaction.enabled is false for this table", small=small, young=young)
    quiet = None if forced or policy.quiet_hours is None else policy.quiet_hours.until_ms(selection.now_ms)
    if quiet is not None:
        return Plan(rule=QUIET, reason=f"{policy.quiet_hours}", small=small, young=young, ripe_at=quiet)
    picked, rule = _pick(selection.files, policy, forced=forced)
    groups = tuple(_grouped(picked, policy)) if rule is not None else ()
    if rule is None or not groups:
        rule, reason = _declined(small, young, policy, selection.left_out)
        return Plan(
            rule=rule, reason=reason, small=small, young=young, left=left, left_out=len(selection.left_out),
            ripe_at=selection.ripe_at,
        )  # fmt: skip
    strategy, why = choose_strategy([file for group in groups for file in group.files], policy, has_order=has_order)
    heap = _heap(file for group in groups for file in group.files)
    return Plan(
        groups=groups,
        rule=ASKED if forced else rule,
        strategy=strategy,
        why=why,
        score=heap.score(policy),
        small=small + young + left,
        young=young,
        left=left,
        left_out=len(selection.left_out),
        ripe_at=selection.ripe_at,
    )


def choose_strategy(files: Sequence[TableFile], policy: Policy, *, has_order: bool) -> tuple[Strategy, str]:
    mean = sum(file.file_size for file in files) // max(len(files), 1)
    match policy.strategy:
        case "sort" | "zorder" if not has_order:
            return "binpack", f"the settings say {policy.strategy}, but the table has no sort_by"
        case "auto" if has_order:
            return "sort", "the table has sort_by"
        case "auto" if mean >= policy.copy_above_bytes:
            return "copy", f"files of {mean:,} bytes on the average can have row groups worth keeping"
        case "auto":
            return "binpack", f"files of {mean:,} bytes on the average have row groups too small to keep"
        case named:
            return named, "the settings say so"


def _pick(files: Iterable[TableFile], policy: Policy, *, forced: bool) -> tuple[list[TableFile], str | None]:
    ordered = sorted(files, key=lambda file: (file.file_size, file.id))
    if forced:
        return ordered, ASKED if len(ordered) > 1 else None
    size = fresh = best = 0
    by: str | None = None
    for count, file in enumerate(ordered, 1):
        size += file.file_size
        fresh += file.operation != "compaction"
        if (rule := Heap(count, size, file.file_size, fresh).rule(policy)) is not None:
            best, by = count, rule
    return ordered[:best], by


def _grouped(files: Sequence[TableFile], policy: Policy) -> Iterable[Group]:
    """Of about the same size each, none above the policy's, in the order of the files' ids."""
    total = sum(file.file_size for file in files)
    share = total / -(-total // policy.max_group_bytes) if total else 1
    gathered: list[TableFile] = []
    size = 0
    for file in sorted(files, key=lambda file: file.id):
        full = size + file.file_size > policy.max_group_bytes or len(gathered) == MOST_IN_GROUP
        if gathered and (full or size + file.file_size / 2 >= share):
            yield from _group(gathered, policy)
            gathered, size = [], 0
        gathered.append(file)
        size += file.file_size
    yield from _group(gathered, policy)


def _group(files: Sequence[TableFile], policy: Policy) -> Iterable[Group]:
    heap = _heap(files)
    outputs = heap.outputs(policy)
    if len(files) > outputs:
        even = -(-heap.size_bytes // outputs)  # so that the last one is no leftover
        yield Group(tuple(files), outputs, even if outputs > 1 else max(even, policy.target_bytes))


def _heap(files: Iterable[TableFile]) -> Heap:
    listed = list(files)
    sizes = [file.file_size for file in listed]
    fresh = sum(file.operation != "compaction" for file in listed)
    return Heap(len(listed), sum(sizes), max(sizes, default=0), fresh)


def _declined(small: int, young: int, policy: Policy, left_out: Mapping[str, str]) -> tuple[str, str]:
    if left_out and small + young < policy.min_inputs:
        path, reason = next(iter(left_out.items()))
        return BAD_FILES, f"{len(left_out):,} left out, such as {path}: it {reason}"
    if small + young < policy.min_inputs:
        return OVER, "there are too few small files left"
    if young:
        return YOUNG, f"files have to be {policy.min_age_ms / 1000:g} s old"
    return DEAR, "too much would be rewritten for each file less; more small files will change that"
