"""Files that can't be merged: they are left out of the next plans, and tried again after a while.

The journal keeps them with the decision that found them. A file is immutable and its name is used once, so it stays bad
until it is restored from a copy; hence the backoff, from an hour to a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from components.compactor.merge import UnmergeableFile
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.json_text import JsonValue, parse_json
from registry.models import Compaction

_HOUR_MS = 3_600_000
_LONGEST_MS = 24 * _HOUR_MS
_MOST_RECORDED = 50  # files per decision
_JOURNAL_ROWS = 200  # read per table
_MOST_PARTITIONS = 10_000  # kept in memory; the oldest is dropped first, and read from the journal again


class FileBackoff(msgspec.Struct, frozen=True):
    """A file that is left out for now."""

    reason: str
    until_ms: int
    times: int = 1
    since_ms: int = 0  # when it was found bad for the first time


def left_out_record(bad: Sequence[UnmergeableFile]) -> dict[str, JsonValue]:
    """Returns the files as part of a decision's explanation."""
    if not bad:
        return {}
    files: list[JsonValue] = [{"path": file.path, "reason": file.reason} for file in bad[:_MOST_RECORDED]]
    return {"left_out": files, "left_out_in_all": len(bad)}


def read_left_out(row: Compaction) -> list[UnmergeableFile]:
    """Returns the files that a decision in the journal has left out."""
    explanation: Any = parse_json(row.explanation)
    result = explanation.get("result") if isinstance(explanation, dict) else None
    files = result.get("left_out") if isinstance(result, dict) else None
    return [UnmergeableFile(str(file["path"]), str(file["reason"])) for file in files or () if isinstance(file, dict)]


def newest_left_out(rows: Iterable[Compaction]) -> dict[str, dict[str, FileBackoff]]:
    """Returns them by partition and path, from a table's journal rows. A file that was found bad repeatedly waits
    longer.
    """
    found: dict[str, dict[str, FileBackoff]] = {}
    for row in sorted(rows, key=lambda row: (row.decided_at, row.id)):
        if row.status in ("done", "failed"):
            note_bad(found.setdefault(row.partition_path, {}), read_left_out(row), row.ended_at or row.decided_at)
    return {path: waits for path, waits in found.items() if waits}


def note_bad(waits: dict[str, FileBackoff], bad: Iterable[UnmergeableFile], now_ms: int) -> None:
    for file in bad:
        before = waits.get(file.path, FileBackoff("", 0, 0, now_ms))
        wait_ms = min(_HOUR_MS << min(before.times, 10), _LONGEST_MS)
        waits[file.path] = FileBackoff(file.reason, now_ms + wait_ms, before.times + 1, before.since_ms)


class LeftOut:
    """The files of all partitions that this compactor has planned."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[tuple[int, str], dict[str, FileBackoff]] = {}

    def __iter__(self) -> Iterator[tuple[tuple[int, str], Mapping[str, FileBackoff]]]:
        """Yields partitions with files that are left out now."""
        for key in list(self._known):
            if waits := self._now(key):
                yield key, waits

    async def of(self, table_id: int, partition_path: str) -> Mapping[str, FileBackoff]:
        """Returns the files that are left out now, by path."""
        key = (table_id, partition_path)
        if key not in self._known:
            rows = await self._store.list_compactions(
                table_id=table_id, statuses=("done", "failed"), limit=_JOURNAL_ROWS
            )
            self._keep(key, newest_left_out(rows).get(partition_path, {}))
        return self._now(key)

    def note(self, table_id: int, partition_path: str, bad: Iterable[UnmergeableFile]) -> None:
        key = (table_id, partition_path)
        waits = self._known.get(key, {})
        note_bad(waits, bad, self._clock.now_ms())
        self._keep(key, waits)

    def keep_only(self, table_id: int, partition_path: str, paths: Iterable[str]) -> None:
        """Forgets files that the partition no longer has."""
        waits = self._known.get((table_id, partition_path))
        if waits:
            for path in set(waits).difference(paths):
                del waits[path]

    def _keep(self, key: tuple[int, str], waits: dict[str, FileBackoff]) -> None:
        self._known.pop(key, None)
        self._known[key] = waits
        while len(self._known) > _MOST_PARTITIONS:
            del self._known[next(iter(self._known))]

    def _now(self, key: tuple[int, str]) -> Mapping[str, FileBackoff]:
        now = self._clock.now_ms()
        return {path: wait for path, wait in self._known[key].items() if wait.until_ms > now}
