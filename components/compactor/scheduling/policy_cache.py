"""Names and policies of tables, in memory, for decisions.

They are not kept by events: the compactor subscribes to files and statistics. A policy is used for a while and read
again in the background when its table changes. Until a new table was read, decisions use the defaults, and no job
begins. A plan always reads the registry.
"""

from __future__ import annotations

import msgspec
import structlog

from components.compactor.scheduling.policy import CompactionPolicy, PolicyProblem, read_policy
from registry.json_text import parse_json
from registry.models import LakeTable, TableMetadata

log = structlog.get_logger(__name__)

_REREAD_MS = 60_000


class TablePolicy(msgspec.Struct, frozen=True):
    name: str
    policy: CompactionPolicy
    active: bool
    problem: str | None
    read_at: int


class PolicyCache:
    def __init__(self, defaults: CompactionPolicy, max_age_ms: int = 10_000) -> None:
        self.defaults = defaults
        self._unknown = TablePolicy("", defaults, True, None, 0)
        self._max_age_ms = max_age_ms
        self._known: dict[int, TablePolicy] = {}
        self._changed: set[int] = set()
        self._blocked: set[int] = set()

    def of(self, table_id: int) -> TablePolicy:
        return self._known.get(table_id, self._unknown)

    def known(self) -> list[int]:
        return list(self._known)

    def name(self, table_id: int) -> str | None:
        known = self._known.get(table_id)
        return None if known is None else known.name

    def introduce(self, table: LakeTable, metadata: TableMetadata, now_ms: int) -> TablePolicy:
        """Stores a table as it was read. If a property can't be read, only this table is not compacted until it is
        fixed.
        """
        before = self._known.get(table.id)
        problem: str | None = None
        policy = self.defaults
        try:
            policy = read_policy(parse_json(metadata.properties), policy)
        except PolicyProblem as found:
            problem = str(found)
            if before is None or before.problem != problem:
                log.error("compaction settings of a table can't be read", table=_name(table), problem=problem)
        known = TablePolicy(_name(table), policy, table.status == "active", problem, now_ms)
        self._known[table.id] = known
        self._changed.discard(table.id)
        if policy.enabled and problem is None:
            self._blocked.discard(table.id)
        return known

    def forget(self, table_id: int) -> None:
        self._known.pop(table_id, None)
        self._changed.discard(table_id)
        self._blocked.discard(table_id)

    def reread(self, table_id: int) -> None:
        """Its settings prevent compaction: read them again now and then, also if the table does not change."""
        self._blocked.add(table_id)

    def table_changed(self, table_id: int) -> None:
        """It is read again when its policy is old enough."""
        self._changed.add(table_id)

    def to_read(self, now_ms: int, limit: int = 100) -> list[int]:
        """Returns tables whose policy is unknown or too old, of those that have changed or whose settings prevent
        compaction.
        """
        candidates = [(table_id, self._max_age_ms) for table_id in self._changed]
        candidates += [(table_id, _REREAD_MS) for table_id in self._blocked - self._changed]
        due = (
            table_id
            for table_id, max_age_ms in candidates
            if (known := self._known.get(table_id)) is None or now_ms - known.read_at >= max_age_ms
        )
        return [table_id for _, table_id in zip(range(limit), due, strict=False)]


def _name(table: LakeTable) -> str:
    return f"{table.database}.{table.name}"
