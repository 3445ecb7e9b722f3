"""Files that can't be merged: left out of the next plans, and tried again after a while.

They are kept in the journal, with the decision that found them. A file is immutable and its name is used once, so what
was found stays true until the file is restored from a copy; hence the backoff, from an hour to a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from components.compactor.merge import BadFile
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.json_text import JsonValue, parse_json
from registry.models import Compaction

_HOUR_MS = 3_600_000
_LONGEST_MS = 24 * _HOUR_MS
_TOLD = 50  # files of one decision
_ROWS = 200  # of a table's journal that are looked at
_MOST = 10_000  # partitions that are remembered; the oldest is forgotten first, and found in the journal again


class Wait(msgspec.Struct, frozen=True):
    """A file that is left out for now."""

    reason: str
    until_ms: int
    times: int = 1
    since_ms: int = 0  # found bad for the first time


def told_left_out(bad: Sequence[BadFile]) -> dict[str, JsonValue]:
    """For a decision's explanation."""
    if not bad:
        return {}
    files: list[JsonValue] = [{"path": file.path, "reason": file.reason} for file in bad[:_TOLD]]
    return {"left_out": files, "left_out_in_all": len(bad)}


def read_left_out(row: Compaction) -> list[BadFile]:
    """Those that a decision in the journal tells of."""
    told: Any = parse_json(row.explanation)
    result = told.get("result") if isinstance(told, dict) else None
    files = result.get("left_out") if isinstance(result, dict) else None
    return [BadFile(str(file["path"]), str(file["reason"])) for file in files or () if isinstance(file, dict)]


def newest_left_out(rows: Iterable[Compaction]) -> dict[str, dict[str, Wait]]:
    """By partition and path, from a table's rows, the newest first. A file that was found bad several times in a row
    waits longer.
    """
    found: dict[str, dict[str, Wait]] = {}
    for row in sorted(rows, key=lambda row: (row.decided_at, row.id)):
        if row.status in ("done", "failed"):
            noted(found.setdefault(row.partition_path, {}), read_left_out(row), row.ended_at or row.decided_at)
    return {path: waits for path, waits in found.items() if waits}


def noted(waits: dict[str, Wait], bad: Iterable[BadFile], now_ms: int) -> None:
    for file in bad:
        before = waits.get(file.path, Wait("", 0, 0, now_ms))
        wait_ms = min(_HOUR_MS << min(before.times, 10), _LONGEST_MS)
        waits[file.path] = Wait(file.reason, now_ms + wait_ms, before.times + 1, before.since_ms)


class LeftOut:
    """Of all partitions that this compactor has planned."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[tuple[int, str], dict[str, Wait]] = {}

    def __iter__(self) -> Iterator[tuple[tuple[int, str], Mapping[str, Wait]]]:
        """Partitions with files that are left out now."""
        for key in list(self._known):
            if waits := self._now(key):
                yield key, waits

    async def of(self, table_id: int, partition_path: str) -> Mapping[str, Wait]:
        """By path, those that are left out now."""
        key = (table_id, partition_path)
        if key not in self._known:
            rows = await self._store.list_compactions(table_id=table_id, statuses=("done", "failed"), limit=_ROWS)
            self._keep(key, newest_left_out(rows).get(partition_path, {}))
        return self._now(key)

    def note(self, table_id: int, partition_path: str, bad: Iterable[BadFile]) -> None:
        key = (table_id, partition_path)
        waits = self._known.get(key, {})
        noted(waits, bad, self._clock.now_ms())
        self._keep(key, waits)

    def keep_only(self, table_id: int, partition_path: str, paths: Iterable[str]) -> None:
        """Forget those that are no files of the partition any more."""
        waits = self._known.get((table_id, partition_path))
        if waits:
            for path in set(waits).difference(paths):
                del waits[path]

    def _keep(self, key: tuple[int, str], waits: dict[str, Wait]) -> None:
        self._known.pop(key, None)
        self._known[key] = waits
        while len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def _now(self, key: tuple[int, str]) -> Mapping[str, Wait]:
        now = self._clock.now_ms()
        return {path: wait for path, wait in self._known[key].items() if wait.until_ms > now}
