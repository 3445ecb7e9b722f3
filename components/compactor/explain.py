"""What `astha compaction explain` shows: the decision about each partition of a table, from fresh counts."""

from __future__ import annotations

from typing import Any

import msgspec

from components.compactor.planning.file_selection import UNWRITABLE
from components.compactor.planning.left_out import newest_left_out
from components.compactor.planning.planner import why_not_writable
from components.compactor.scheduling.counters import Counters
from components.compactor.scheduling.policy import CompactionPolicy, PolicyProblem, read_policy
from components.compactor.scheduling.scoring import FileSet, judge
from components.lib.lake.table_lookup import current_metadata, full_name
from registry.clock import Clock
from registry.contract import MetadataStore
from registry.json_text import JsonValue, parse_json
from registry.models import Compaction, LakeTable

_LAST_DECISIONS = 10
_JOURNAL_ROWS = 1_000  # searched for files that were left out


class LeftOutFile(msgspec.Struct, frozen=True):
    path: str
    reason: str
    until_ms: int


class PartitionExplanation(msgspec.Struct, frozen=True, kw_only=True):
    partition: str
    files: int
    size_bytes: int
    small_files: int
    small_bytes: int
    to_merge: int
    bytes_to_rewrite: int
    score: float
    status: str  # waiting, declined, running or fine
    rule: str
    reason: str | None
    until_ms: int | None
    delete_files: int = 0  # of other engines
    deleted_rows: int = 0  # by position
    left_out: list[LeftOutFile] = []  # files that could not be read


class TableExplanation(msgspec.Struct, frozen=True, kw_only=True):
    table: str
    policy: dict[str, JsonValue]
    problem: str | None
    partitions: list[PartitionExplanation]
    decisions: list[Compaction]


async def explain(store: MetadataStore, clock: Clock, table: LakeTable, defaults: CompactionPolicy) -> TableExplanation:
    """Reads the row of every file of the table once."""
    metadata = await current_metadata(store, table)
    problem: str | None = None
    policy = defaults
    try:
        policy = read_policy(parse_json(metadata.properties), defaults)
    except PolicyProblem as found:
        problem = str(found)
    now = clock.now_ms()
    counters = Counters()
    counters.tune(table.id, policy.min_age_ms, 0)
    ended = await store.list_compactions(table_id=table.id, statuses=("done", "failed"), limit=_JOURNAL_ROWS)
    bad = newest_left_out(ended)
    left_out: dict[str, list[LeftOutFile]] = {}
    async for file in store.stream_files(table.id):
        counters.count(file)
        wait = bad.get(file.partition_path, {}).get(file.file_path)
        if wait is not None:
            left_out.setdefault(file.partition_path, []).append(LeftOutFile(file.file_path, wait.reason, wait.until_ms))
    await _count_deletes(store, table.id, counters)
    reason = why_not_writable(metadata, full_name(table))
    unwritable = {} if reason is None else {"status": "declined", "rule": UNWRITABLE, "reason": reason}
    rows = await store.list_compactions(table_id=table.id, limit=_LAST_DECISIONS)
    running = {row.partition_path: row for row in await store.list_compactions(table_id=table.id, statuses=["running"])}
    return TableExplanation(
        table=full_name(table),
        policy=policy.shown(),
        problem=problem,
        partitions=[
            msgspec.structs.replace(
                _partition(counters, table.id, path, policy, now, problem, running.get(path)),
                left_out=left_out.get(path, []),
                **unwritable,
            )
            for path in sorted(counters.paths(table.id))
        ],
        decisions=rows,
    )


async def _count_deletes(store: MetadataStore, table_id: int, counters: Counters) -> None:
    after = 0
    while page := await store.list_delete_files(table_id, after=after):
        for file in page:
            counters.deletes.count(file)
        after = page[-1].id


def _partition(
    counters: Counters,
    table_id: int,
    path: str,
    policy: CompactionPolicy,
    now_ms: int,
    problem: str | None,
    running: Compaction | None,
) -> PartitionExplanation:
    ripe_at = counters.ripen((table_id, path), now_ms)
    counts = counters.of((table_id, path))
    if counts is None:
        raise LookupError(f"partition {path!r} was counted a moment ago")
    deletes = counters.deletes.of((table_id, path))
    verdict = judge(counts, policy, now_ms, ripe_at=ripe_at, problem=problem, deletes=deletes)
    small = _small(counts.all_tiers(), policy) if verdict is None else verdict.small
    decided: dict[str, Any] = {"status": "fine", "rule": "too few small files", "reason": None, "until_ms": None}
    if verdict is not None:
        decided = {name: getattr(verdict, name) for name in decided}
    elif small.files >= policy.min_inputs:
        decided["rule"] = "nothing new since the last compaction"
    if running is not None:
        decided |= {"status": "running", "reason": f"by {running.owner}"}
    picked = FileSet() if verdict is None else verdict.picked
    return PartitionExplanation(
        partition=path,
        files=counts.files,
        size_bytes=counts.size_bytes,
        small_files=small.files,
        small_bytes=small.size_bytes,
        to_merge=picked.files,
        bytes_to_rewrite=picked.size_bytes,
        score=0.0 if verdict is None else round(verdict.score, 3),
        delete_files=deletes.files,
        deleted_rows=deletes.rows,
        **decided,
    )


def _small(tiers: Any, policy: CompactionPolicy) -> FileSet:
    cells = [cell for cell in tiers.values() if cell.size_bytes // cell.files < policy.small_bytes]
    return FileSet(sum(cell.files for cell in cells), sum(cell.size_bytes for cell in cells))
