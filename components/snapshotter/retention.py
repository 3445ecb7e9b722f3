"""Decides which snapshots are kept and which files may be deleted, each with a reason. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from components.snapshotter.policy import SnapshotPolicy
from registry.json_text import parse_json_as
from registry.models import FileAwaitingDeletion, TableSnapshot


class RetentionDecision(msgspec.Struct, frozen=True):
    """About one snapshot or one file."""

    name: str
    remove: bool
    reason: str
    id: int
    size_bytes: int = 0


class RetentionReport(msgspec.Struct):
    """The decisions about one table. `table` is an id if the registry no longer has the table."""

    table: str
    decisions: list[RetentionDecision] = []
    released: list[int] = []  # rows whose Iceberg tags were removed, with the snapshots that only they held
    problem: str | None = None

    @property
    def removed(self) -> list[RetentionDecision]:
        return [decision for decision in self.decisions if decision.remove]


def decide_snapshots(
    rows: Iterable[TableSnapshot], policy: SnapshotPolicy, now_ms: int, tags: Collection[str] = ()
) -> list[RetentionDecision]:
    """Decides about created snapshots, newest first: by `tags` if given, else by the policy."""
    created = sorted((row for row in rows if row.status == "created"), key=lambda row: row.id, reverse=True)
    return [_decide_snapshot(row, rank, policy, now_ms, tags) for rank, row in enumerate(created, 1)]


def _decide_snapshot(
    row: TableSnapshot, rank: int, policy: SnapshotPolicy, now_ms: int, tags: Collection[str]
) -> RetentionDecision:
    name, age_ms = row.tag or str(row.snapshot_id), now_ms - row.created_at
    if row.tag in tags:
        return RetentionDecision(name, True, "named", row.id)
    if tags:
        return RetentionDecision(name, False, "not named", row.id)
    if not policy.expires:
        return RetentionDecision(name, False, "neither snapshot.keep nor snapshot.keep-for is set", row.id)
    if policy.holds(row.tag):
        return RetentionDecision(name, False, "held by snapshot.hold", row.id)
    if policy.keep is not None and rank <= policy.keep:
        return RetentionDecision(name, False, f"{_ordinal(rank)} of the {policy.keep} to keep", row.id)
    if policy.keep_for_ms is not None and age_ms < policy.keep_for_ms:
        return RetentionDecision(name, False, f"{_span(age_ms)} old, kept for {_span(policy.keep_for_ms)}", row.id)
    reasons = []
    if policy.keep is not None:
        reasons.append(f"{_ordinal(rank)}, where {policy.keep} are kept")
    if policy.keep_for_ms is not None:
        reasons.append(f"{_span(age_ms)} old, kept for {_span(policy.keep_for_ms)}")
    return RetentionDecision(name, True, "; ".join(reasons), row.id)


class _RemovedFile(msgspec.Struct, frozen=True):
    """The common part of a removed data file and a removed delete file."""

    created_at: int
    operation: str = ""


def decide_files(
    files: Iterable[FileAwaitingDeletion],
    referenced: Mapping[str, int],
    grace_ms: int,
    now_ms: int,
    *,
    behind: str | None = None,
    uncertain_since: int | None = None,
) -> list[RetentionDecision]:
    """`referenced`: by path, an Iceberg snapshot that needs it. `behind`: why Iceberg may not have seen the removals.

    `uncertain_since`: Iceberg has the registry's files, but may not have seen every change since then. A file that was
    added and removed in that time may still reach a snapshot, and is kept.
    """
    return [_decide_file(file, referenced, grace_ms, now_ms, behind, uncertain_since) for file in files]


def _decide_file(
    file: FileAwaitingDeletion,
    referenced: Mapping[str, int],
    grace_ms: int,
    now_ms: int,
    behind: str | None,
    uncertain_since: int | None,
) -> RetentionDecision:
    def decision(remove: bool, reason: str) -> RetentionDecision:
        return RetentionDecision(file.file_path, remove, reason, file.id, file.file_size)

    age_ms = now_ms - file.removed_at
    if age_ms < grace_ms:
        return decision(False, f"removed {_span(age_ms)} ago, grace is {_span(grace_ms)}")
    if file.file_path in referenced:
        return decision(False, f"Iceberg snapshot {referenced[file.file_path]} needs it")
    if behind is not None:
        return decision(False, behind)
    if uncertain_since is not None:
        row = parse_json_as(file.file, _RemovedFile)
        if row.operation == "rollback" or row.created_at >= uncertain_since:
            return decision(False, "added and removed since Iceberg's last commit, which may not contain that yet")
    return decision(True, f"removed {_span(age_ms)} ago ({file.reason}), and no snapshot needs it")


def _ordinal(rank: int) -> str:
    return "the newest" if rank == 1 else f"number {rank}"


def _span(ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms >= length:
            return f"{ms // length} {unit}"
    return f"{max(ms, 0)} ms"
