"""Reads counts from the registry's rows, and checks counts that are kept by events.

`table_stats` is the registry's own count of the same files, changed in the same transactions. While both change alike,
no event was lost or counted twice; otherwise a refresh counts again. Statistics that were wrong when they were read are
a problem of the registry (`astha verify` reports it): only a change of the difference counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from astha.events import Event, Operation
from components.compactor.scheduling.counters import CountDifference, Counters, Key
from components.compactor.scheduling.policy_cache import PolicyCache
from registry.contract import ConsistentRead
from registry.models import LakeTable, Row, TableDeleteFile, TableFile, TableMetadata, TableStats

Gap: TypeAlias = tuple[int, int, int]
"""Files, bytes and rows in the statistics, minus those counted."""

_NONE: Gap = (0, 0, 0)


class CounterDrift:
    def __init__(self) -> None:
        self._gaps: dict[Key, Gap] = {}

    def learn(self, counters: Counters, stats: TableStats) -> None:
        """Learns the differences that the registry has in one snapshot."""
        difference = counters.compare(stats)
        if difference is not None:
            self._gaps[difference.key] = _gap(difference)

    def check(self, counters: Counters, events: Sequence[Event[Row]]) -> CountDifference | None:
        """Returns the first new difference after a whole transaction."""
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
                return difference or CountDifference(key, _NONE, _NONE)
        return None


def _gap(difference: CountDifference) -> Gap:
    files, size, rows = (
        recorded - counted for recorded, counted in zip(difference.recorded, difference.counted, strict=True)
    )
    return files, size, rows


class RegistryCounts(msgspec.Struct):
    counters: Counters
    drift: CounterDrift
    tables: set[int]


async def read_counts(snapshot: ConsistentRead, tables: PolicyCache, now_ms: int) -> RegistryCounts:
    """Counts all files, streamed. ``tables`` learns the policies of all tables."""
    counters, drift = Counters(tables.defaults.min_age_ms), CounterDrift()
    found: dict[int, LakeTable] = {}
    await _introduce(snapshot, tables, counters, now_ms, found)
    async for files in snapshot.rows(TableFile):
        for file in files:
            counters.count(file)
    async for deletes in snapshot.rows(TableDeleteFile):
        for delete_file in deletes:
            counters.deletes.count(delete_file)
    async for rows in snapshot.rows(TableStats):
        for stats in rows:
            drift.learn(counters, stats)
    return RegistryCounts(counters, drift, set(found))


async def _introduce(
    snapshot: ConsistentRead, tables: PolicyCache, counters: Counters, now_ms: int, found: dict[int, LakeTable]
) -> None:
    """Adds all tables to ``found``, and their policies to ``tables``."""
    newest: dict[int, TableMetadata] = {}
    async for page in snapshot.rows(LakeTable):
        found |= {table.id: table for table in page}
    async for versions in snapshot.rows(TableMetadata):
        for version in versions:
            known = newest.get(version.table_id)
            if known is None or known.schema_version < version.schema_version:
                newest[version.table_id] = version
    for table_id, metadata in newest.items():
        if table_id in found:
            policy = tables.introduce(found[table_id], metadata, now_ms).policy
            counters.tune(table_id, policy.min_age_ms, now_ms)
