"""Which snapshots stay and which files may go: decisions only, each with its reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from components.snapshotter.policy import Policy
from registry.json_text import parse_json_as
from registry.models import FileAwaitingDeletion, TableFile, TableSnapshot


class Verdict(msgspec.Struct, frozen=True):
    """On a snapshot or a file."""

    name: str
    goes: bool
    why: str
    id: int
    size_bytes: int = 0


def judge_snapshots(
    rows: Iterable[TableSnapshot], policy: Policy, now_ms: int, tags: Collection[str] = ()
) -> list[Verdict]:
    """Created ones, newest first. What `keep` or `keep-for` wants stays; `tags` go because they were named."""
    created = sorted((row for row in rows if row.status == "created"), key=lambda row: row.id, reverse=True)
    return [_judge_snapshot(row, place, policy, now_ms, tags) for place, row in enumerate(created, 1)]


def _judge_snapshot(row: TableSnapshot, place: int, policy: Policy, now_ms: int, tags: Collection[str]) -> Verdict:
    name, age_ms = row.tag or str(row.snapshot_id), now_ms - row.created_at
    if row.tag in tags:
        return Verdict(name, True, "named", row.id)
    if tags:
        return Verdict(name, False, "not named", row.id)
    if not policy.expires:
        return Verdict(name, False, "nothing says how long to keep it", row.id)
    if policy.holds(row.tag):
        return Verdict(name, False, "snapshot.hold names it", row.id)
    if policy.keep is not None and place <= policy.keep:
        return Verdict(name, False, f"{_ordinal(place)} of the {policy.keep} to keep", row.id)
    if policy.keep_for_ms is not None and age_ms < policy.keep_for_ms:
        return Verdict(name, False, f"{_span(age_ms)} old, kept for {_span(policy.keep_for_ms)}", row.id)
    reasons = []
    if policy.keep is not None:
        reasons.append(f"{_ordinal(place)}, where {policy.keep} are kept")
    if policy.keep_for_ms is not None:
        reasons.append(f"{_span(age_ms)} old, kept for {_span(policy.keep_for_ms)}")
    return Verdict(name, True, "; ".join(reasons), row.id)


def judge_files(
    files: Iterable[FileAwaitingDeletion],
    referenced: Mapping[str, int],
    grace_ms: int,
    now_ms: int,
    *,
    behind: str | None = None,
    uncertain_since: int | None = None,
) -> list[Verdict]:
    """``referenced``: the Iceberg snapshot that needs a path. ``behind``: why Iceberg may not have seen the files go.

    ``uncertain_since``: Iceberg has the registry's files, but nobody knows whether it has seen everything that came
    since then. A file that came and went in that time may still be on its way to a snapshot, and stays.
    """
    return [_judge_file(file, referenced, grace_ms, now_ms, behind, uncertain_since) for file in files]


def _judge_file(
    file: FileAwaitingDeletion,
    referenced: Mapping[str, int],
    grace_ms: int,
    now_ms: int,
    behind: str | None,
    uncertain_since: int | None,
) -> Verdict:
    def verdict(goes: bool, why: str) -> Verdict:
        return Verdict(file.file_path, goes, why, file.id, file.file_size)

    age_ms = now_ms - file.removed_at
    if age_ms < grace_ms:
        return verdict(False, f"removed {_span(age_ms)} ago, grace is {_span(grace_ms)}")
    if file.file_path in referenced:
        return verdict(False, f"Iceberg snapshot {referenced[file.file_path]} needs it")
    if behind is not None:
        return verdict(False, behind)
    if uncertain_since is not None:
        row = parse_json_as(file.file, TableFile)
        if row.operation == "rollback" or row.created_at >= uncertain_since:
            return verdict(False, "it came and went since Iceberg's last commit, which may have yet to follow")
    return verdict(True, f"removed {_span(age_ms)} ago ({file.reason}), and no snapshot needs it")


def _ordinal(place: int) -> str:
    return "the newest" if place == 1 else f"number {place}"


def _span(ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms >= length:
            return f"{ms // length} {unit}"
    return f"{max(ms, 0)} ms"
