"""What a decision has to know of a table, at hand: its name and its policy.

Not by events: the compactor follows files and statistics. What was read is believed for a while and read again in the
background when the table moves; until a new table is known, decisions go by the defaults, and what is decided waits for
it. The plan, which reads anyway, always goes by what the registry says then.
"""

from __future__ import annotations

import msgspec
import structlog

from components.compactor.scheduling.policy import Policy, PolicyProblem, read_policy
from registry.json_text import parse_json
from registry.models import LakeTable, TableMetadata

log = structlog.get_logger(__name__)

_WATCHED_MS = 60_000


class Known(msgspec.Struct, frozen=True):
    name: str
    policy: Policy
    has_order: bool
    active: bool
    problem: str | None
    read_at: int


class Tables:
    def __init__(self, defaults: Policy, life_ms: int = 10_000) -> None:
        self.defaults = defaults
        self._unknown = Known("", defaults, False, True, None, 0)
        self._life_ms = life_ms
        self._known: dict[int, Known] = {}
        self._moved: set[int] = set()
        self._watched: set[int] = set()

    def of(self, table_id: int) -> Known:
        return self._known.get(table_id, self._unknown)

    def known(self) -> list[int]:
        return list(self._known)

    def name(self, table_id: int) -> str | None:
        known = self._known.get(table_id)
        return None if known is None else known.name

    def introduce(self, table: LakeTable, metadata: TableMetadata, now_ms: int) -> Known:
        """As read. A property that can't be read is this table's problem alone: it is not compacted until mended."""
        before = self._known.get(table.id)
        problem: str | None = None
        policy = self.defaults
        try:
            policy = read_policy(parse_json(metadata.properties), policy)
        except PolicyProblem as found:
            problem = str(found)
            if before is None or before.problem != problem:
                log.error("a table's compaction settings can't be read", table=_name(table), problem=problem)
        ordered = bool(parse_json(metadata.sort_by))
        known = Known(_name(table), policy, ordered, table.status == "active", problem, now_ms)
        self._known[table.id] = known
        self._moved.discard(table.id)
        if policy.enabled and problem is None:
            self._watched.discard(table.id)
        return known

    def forget(self, table_id: int) -> None:
        self._known.pop(table_id, None)
        self._moved.discard(table_id)
        self._watched.discard(table_id)

    def watch(self, table_id: int) -> None:
        """Its settings are in the way: worth reading again now and then, also if it does not move."""
        self._watched.add(table_id)

    def move(self, table_id: int) -> None:
        """It has changed: worth reading again, when the time has come."""
        self._moved.add(table_id)

    def to_read(self, now_ms: int, limit: int = 100) -> list[int]:
        """Tables that moved, or are watched, and are unknown or known from too long ago."""
        lives = [(table_id, self._life_ms) for table_id in self._moved]
        lives += [(table_id, _WATCHED_MS) for table_id in self._watched - self._moved]
        due = (
            table_id
            for table_id, life_ms in lives
            if (known := self._known.get(table_id)) is None or now_ms - known.read_at >= life_ms
        )
        return [table_id for _, table_id in zip(range(limit), due, strict=False)]


def _name(table: LakeTable) -> str:
    return f"{table.database}.{table.name}"
