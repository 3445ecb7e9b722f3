"""The outcome of a job, added up over its groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from components.compactor.execution.swap import Swap
from components.compactor.merge import UnmergeableFile
from components.compactor.planning.left_out import left_out_record
from components.compactor.scheduling.backoff import JobStatus
from registry.inputs import CompactionOutcome
from registry.json_text import JsonText, parse_json, to_json_text
from registry.models import TableFile


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """``declined``: another job has the partition, and nothing was begun."""

    status: JobStatus
    reason: str | None = None
    error: Exception | None = None  # of a job that failed, for its starter
    input_files: int = 0
    input_bytes: int = 0
    input_sizes: dict[int, int] = {}  # see `count_sizes`
    merged_again: dict[int, int] = {}  # those of the inputs that an earlier compaction wrote
    output_files: int = 0
    output_bytes: int = 0
    rows: int = 0
    strategy: str | None = None
    why: str | None = None
    groups: int = 0
    seconds: dict[str, float] = {}
    left_out: tuple[UnmergeableFile, ...] = ()  # files that can't be merged

    def to_record(self, explanation: JsonText) -> CompactionOutcome:
        """Returns it as the registry stores it: the explanation of the decision, with the result added."""
        known = parse_json(explanation)
        result = {
            "groups": self.groups,
            "why": self.why,
            "input_sizes": _with_text_keys(self.input_sizes),
            "merged_again": _with_text_keys(self.merged_again),
            "seconds": {phase: round(spent, 4) for phase, spent in self.seconds.items()},
            **left_out_record(self.left_out),
        }
        return CompactionOutcome(
            status="aborted" if self.status == "declined" else self.status,
            reason=self.reason,
            strategy=self.strategy,
            explanation=to_json_text({**(known if isinstance(known, dict) else {}), "result": result}),
            input_files=self.input_files if self.groups else None,
            input_bytes=self.input_bytes if self.groups else None,
            output_files=self.output_files,
            output_bytes=self.output_bytes,
            row_count=self.rows,
        )


class JobTotals:
    """Adds up the swaps of a job."""

    def __init__(self) -> None:
        self._swaps: list[Swap] = []
        self._seconds: dict[str, float] = {}
        self._left_out: dict[str, UnmergeableFile] = {}

    @property
    def problem(self) -> str | None:
        """The files that were left out, as a sentence."""
        bad = list(self._left_out.values())
        if not bad:
            return None
        more = "" if len(bad) == 1 else f" (and {len(bad) - 1:,} more files)"
        return f"left out: {bad[0]}{more}"

    def leave_out(self, bad: Iterable[UnmergeableFile]) -> None:
        self._left_out |= {file.path: file for file in bad}

    @property
    def groups(self) -> int:
        return len(self._swaps)

    def add(self, swap: Swap) -> None:
        self._swaps.append(swap)
        self.spent(swap.result.seconds)

    def spent(self, seconds: dict[str, float]) -> None:
        for phase, some in seconds.items():
            self._seconds[phase] = self._seconds.get(phase, 0.0) + some

    def outcome(self, status: JobStatus, reason: str | None = None, error: Exception | None = None) -> JobOutcome:
        old = [file for swap in self._swaps for file in swap.old]
        new = [file for swap in self._swaps for file in swap.new]
        last = self._swaps[-1].result if self._swaps else None
        return JobOutcome(
            status=status,
            reason=reason,
            error=error,
            input_files=len(old),
            input_bytes=_bytes(old),
            input_sizes=count_sizes(old),
            merged_again=count_sizes(file for file in old if file.operation == "compaction"),
            output_files=len(new),
            output_bytes=_bytes(new),
            rows=sum(file.row_count for file in new),
            strategy=None if last is None else last.strategy,
            why=None if last is None else last.why,
            groups=len(self._swaps),
            seconds=dict(self._seconds),
            left_out=tuple(self._left_out.values()),
        )


def count_sizes(files: Iterable[TableFile]) -> dict[int, int]:
    """Counts files by the largest power of two that is not above their size; 0 for empty ones."""
    classes = Counter(1 << file.file_size.bit_length() - 1 if file.file_size else 0 for file in files)
    return dict(sorted(classes.items()))


def _with_text_keys(counts: dict[int, int]) -> dict[str, int]:
    return {str(bound): count for bound, count in counts.items()}


def _bytes(files: list[TableFile]) -> int:
    return sum(file.file_size for file in files)
