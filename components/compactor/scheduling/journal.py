"""Which decisions are written to the journal: those that differ from the last one about their partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from components.compactor.scheduling.counters import Key
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.scoring import NO_LONGER_NEEDED, CompactionVerdict, FileSet
from registry.inputs import CompactionDraft
from registry.json_text import JsonText, JsonValue, to_json_text
from registry.models import Compaction, CompactionTrigger
from registry.position import Position

DecisionIdentity: TypeAlias = tuple[str, str, str | None]
"""Status, rule and reason. Decisions that agree in them are the same."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    key: Key
    verdict: CompactionVerdict
    policy: CompactionPolicy
    trigger: CompactionTrigger
    position: Position | None
    decided_at: int

    @property
    def identity(self) -> DecisionIdentity:
        return self.verdict.status, self.verdict.rule, self.verdict.reason

    def explanation(self) -> JsonText:
        """Returns the numbers behind the decision."""
        verdict, policy = self.verdict, self.policy
        return to_json_text(
            {
                "rule": verdict.rule,
                "counts": {"small": _counts(verdict.small, policy), "to_merge": _counts(verdict.picked, policy)},
                "cost": _cost(verdict.picked, policy),
                "score": round(verdict.score, 6),
                "until": verdict.until_ms,
                "policy": policy.shown(),
            }
        )

    def draft(self, table_name: str) -> CompactionDraft:
        verdict = self.verdict
        file_set = verdict.picked if verdict.picked.files else verdict.small
        return CompactionDraft(
            table_id=self.key[0],
            table_name=table_name,
            partition_path=self.key[1],
            status=verdict.status,
            trigger=self.trigger,
            rule=verdict.rule,
            explanation=self.explanation(),
            position=self.position,
            input_files=file_set.files,
            input_bytes=file_set.size_bytes,
            reason=verdict.reason,
            decided_at=self.decided_at,
        )


class Journal:
    """Memory grows with the partitions that have a decision, which is one row each in the registry."""

    def __init__(self) -> None:
        self._recorded: dict[Key, DecisionIdentity] = {}
        self._unrecorded: dict[Key, Decision] = {}

    def __len__(self) -> int:
        """Returns the number of decisions that are not written yet."""
        return len(self._unrecorded)

    def load(self, rows: Iterable[Compaction]) -> None:
        """Loads the decisions that the registry has."""
        for row in rows:
            if row.status in ("waiting", "declined") and row.rule != NO_LONGER_NEEDED:
                self._recorded[row.table_id, row.partition_path] = (row.status, row.rule, row.reason)

    def is_recorded(self, key: Key) -> bool:
        return key in self._recorded

    def recorded(self) -> list[Key]:
        return list(self._recorded)

    def note(self, decision: Decision) -> bool:
        """Returns whether it differs from the last one."""
        key = decision.key
        if self._recorded.get(key) == decision.identity:
            return False
        if decision.verdict.rule == NO_LONGER_NEEDED:
            self._recorded.pop(key, None)
        else:
            self._recorded[key] = decision.identity
        self._unrecorded[key] = decision
        return True

    def begun(self, key: Key) -> None:
        """The partition is being compacted now."""
        self._recorded.pop(key, None)
        self._unrecorded.pop(key, None)

    def take(self, known: Callable[[int], bool], limit: int = 1_000) -> list[Decision]:
        """Returns decisions to write, of tables whose names are known. Call `put_back` for those that could not be
        written.
        """
        taken = [key for _, key in zip(range(limit), (key for key in self._unrecorded if known(key[0])), strict=False)]
        return [self._unrecorded.pop(key) for key in taken]

    def put_back(self, decisions: Iterable[Decision]) -> None:
        """Returns them to the queue, unless another decision was made or the job has begun since."""
        for decision in decisions:
            identity = None if decision.verdict.rule == NO_LONGER_NEEDED else decision.identity
            if self._recorded.get(decision.key) == identity:
                self._unrecorded.setdefault(decision.key, decision)

    def forget(self, table_id: int) -> None:
        """The table was dropped. Its rows in the registry stay."""
        for kept in (self._recorded, self._unrecorded):
            for key in [key for key in kept if key[0] == table_id]:
                del kept[key]


def _counts(file_set: FileSet, policy: CompactionPolicy) -> dict[str, JsonValue]:
    return {**msgspec.structs.asdict(file_set), "outputs": file_set.outputs(policy) if file_set.files else 0}


def _cost(file_set: FileSet, policy: CompactionPolicy) -> dict[str, JsonValue]:
    removed = file_set.removed(policy) if file_set.files else 0
    return {"bytes_rewritten": file_set.size_bytes, "bytes_per_file_removed": file_set.size_bytes // max(removed, 1)}
