"""Counts from the registry's rows, and the watch over counts that go on by events.

`table_stats` is the registry's own count of the same files, moved in the same transactions. If both move alike, no
event was lost or counted twice; if not, a refresh counts anew. Statistics that were wrong already when they were read
are the registry's trouble (`astha verify` says so): only a change of the difference counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from astha.events import Event, Operation
from components.compactor.scheduling.counters import Counters, Difference, Key
from components.compactor.scheduling.policy_cache import Tables
from registry.contract import ConsistentRead
from registry.models import LakeTable, Row, TableFile, TableMetadata, TableStats

Gap: TypeAlias = tuple[int, int, int]
"""Files, bytes and rows by the statistics, less those counted."""

_NONE: Gap = (0, 0, 0)


class Drift:
    def __init__(self) -> None:
        self._gaps: dict[Key, Gap] = {}

    def learn(self, counters: Counters, stats: TableStats) -> None:
        """Of one snapshot: what differs here differs by the registry's own doing."""
        difference = counters.compare(stats)
        if difference is not None:
            self._gaps[difference.key] = _gap(difference)

    def check(self, counters: Counters, events: Sequence[Event[Row]]) -> Difference | None:
        """After a whole transaction: the first difference that was not there before."""
        for event in events:
            row = event.data
            if not isinstance(row, TableStats):
                continue
            key = (row.table_id, row.partition_path)
            if event.operation is Operation.DELETE:
                self._gaps.pop(key, None)
                continue
            difference = counters.compare(row)
            found = _NONE if difference is None else _gap(difference)
            if found != self._gaps.get(key, _NONE):
                return difference or Difference(key, _NONE, _NONE)
        return None


def _gap(difference: Difference) -> Gap:
    files, size, rows = (there - here for there, here in zip(difference.recorded, difference.counted, strict=True))
    return files, size, rows


class Counted(msgspec.Struct):
    counters: Counters
    drift: Drift
    tables: set[int]


async def read_counts(snapshot: ConsistentRead, tables: Tables, now_ms: int) -> Counted:
    """Everything that a decider counts, streamed; ``tables`` learns them all by the way."""
    counters, drift = Counters(tables.defaults.min_age_ms), Drift()
    there: dict[int, LakeTable] = {}
    newest: dict[int, TableMetadata] = {}
    async for page in snapshot.rows(LakeTable):
        there |= {table.id: table for table in page}
    async for versions in snapshot.rows(TableMetadata):
        for version in versions:
            known = newest.get(version.table_id)
            if known is None or known.schema_version < version.schema_version:
                newest[version.table_id] = version
    for table_id, metadata in newest.items():
        if table_id in there:
            policy = tables.introduce(there[table_id], metadata, now_ms).policy
            counters.tune(table_id, policy.min_age_ms, now_ms)
    async for files in snapshot.rows(TableFile):
        for file in files:
            counters.count(file)
    async for rows in snapshot.rows(TableStats):
        for stats in rows:
            drift.learn(counters, stats)
    return Counted(counters, drift, set(there))
