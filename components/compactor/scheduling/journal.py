"""Which decisions are to be kept: each that differs from the last one about its partition, and none twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from components.compactor.scheduling.counters import Key
from components.compactor.scheduling.explanation import explain_decision
from components.compactor.scheduling.policy import Policy
from components.compactor.scheduling.scoring import OVER, Verdict
from registry.inputs import CompactionDraft
from registry.models import Compaction, CompactionTrigger
from registry.position import Position

Told: TypeAlias = tuple[str, str, str | None]
"""Status, rule and reason: what makes two decisions the same."""


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    key: Key
    verdict: Verdict
    policy: Policy
    trigger: CompactionTrigger
    position: Position | None
    decided_at: int

    @property
    def told(self) -> Told:
        return self.verdict.status, self.verdict.rule, self.verdict.reason

    def draft(self, table_name: str) -> CompactionDraft:
        verdict = self.verdict
        heap = verdict.picked if verdict.picked.files else verdict.small
        return CompactionDraft(
            table_id=self.key[0],
            table_name=table_name,
            partition_path=self.key[1],
            status=verdict.status,
            trigger=self.trigger,
            rule=verdict.rule,
            explanation=explain_decision(verdict, self.policy),
            position=self.position,
            input_files=heap.files,
            input_bytes=heap.size_bytes,
            reason=verdict.reason,
            decided_at=self.decided_at,
        )


class Journal:
    """Memory goes by the partitions about which something stands, which is one row each in the registry."""

    def __init__(self) -> None:
        self._told: dict[Key, Told] = {}
        self._untold: dict[Key, Decision] = {}

    def __len__(self) -> int:
        """Decisions that are not written yet."""
        return len(self._untold)

    def load(self, rows: Iterable[Compaction]) -> None:
        """What stands in the registry."""
        for row in rows:
            if row.status in ("waiting", "declined") and row.rule != OVER:
                self._told[row.table_id, row.partition_path] = (row.status, row.rule, row.reason)

    def stands(self, key: Key) -> bool:
        return key in self._told

    def standing(self) -> list[Key]:
        return list(self._told)

    def note(self, decision: Decision) -> bool:
        """Whether it is news."""
        key = decision.key
        if self._told.get(key) == decision.told:
            return False
        if decision.verdict.rule == OVER:
            self._told.pop(key, None)
        else:
            self._told[key] = decision.told
        self._untold[key] = decision
        return True

    def begun(self, key: Key) -> None:
        """What stood is running now."""
        self._told.pop(key, None)
        self._untold.pop(key, None)

    def take(self, known: Callable[[int], bool], limit: int = 1_000) -> list[Decision]:
        """To be written, of the tables that are known by name. `put_back` what could not be."""
        taken = [key for _, key in zip(range(limit), (key for key in self._untold if known(key[0])), strict=False)]
        return [self._untold.pop(key) for key in taken]

    def put_back(self, decisions: Iterable[Decision]) -> None:
        """They could not be written: again, unless something else was decided or begun since."""
        for decision in decisions:
            told = None if decision.verdict.rule == OVER else decision.told
            if self._told.get(decision.key) == told:
                self._untold.setdefault(decision.key, decision)

    def forget(self, table_id: int) -> None:
        """The table is gone; its rows are history."""
        for kept in (self._told, self._untold):
            for key in [key for key in kept if key[0] == table_id]:
                del kept[key]
