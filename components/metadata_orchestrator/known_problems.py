"""Known problems of tables. Each is logged when it appears and when it is solved."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import structlog

from components.lib.lake.table_lookup import full_name
from registry.models import LakeTable

log = structlog.get_logger(__name__)


class KnownProblem(msgspec.Struct, frozen=True):
    table_id: int
    table: str
    subject: str  # "location", "schema version 3"
    text: str
    since: int  # UTC epoch milliseconds


class KnownProblems:
    """`reported` counts all problems since construction."""

    def __init__(self) -> None:
        self._problems: dict[tuple[int, str], KnownProblem] = {}
        self.reported = 0

    def listed(self) -> list[KnownProblem]:
        """Returns the problems, oldest first."""
        return sorted(self._problems.values(), key=lambda problem: problem.since)

    def found(self, table: LakeTable, subject: str, text: str, now_ms: int) -> None:
        key = (table.id, subject)
        known = self._problems.get(key)
        if known is not None and known.text == text:
            return
        name = full_name(table)
        since = now_ms if known is None else known.since
        self._problems[key] = KnownProblem(table.id, name, subject, text, since)
        self.reported += 1
        log.warning("table problem found", table=name, table_id=table.id, subject=subject, problem=text)

    def solved(self, table_id: int, subjects: Collection[str]) -> None:
        for subject in subjects:
            problem = self._problems.pop((table_id, subject), None)
            if problem is not None:
                log.info("table problem solved", table=problem.table, table_id=table_id, subject=subject)

    def subjects(self, table_id: int) -> set[str]:
        return {subject for owner, subject in self._problems if owner == table_id}

    def tables(self) -> set[int]:
        return {owner for owner, _ in self._problems}

    def forget(self, table_id: int) -> None:
        """To be called when the table was dropped."""
        for subject in self.subjects(table_id):
            del self._problems[table_id, subject]
