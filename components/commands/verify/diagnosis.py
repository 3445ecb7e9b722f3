"""The likely cause of each difference, and the command that repairs it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from components.commands.verify.diff import TableDiff, classify
from components.commands.verify.iceberg_state import IcebergState
from components.commands.verify.report import Cause, Difference, DifferenceKind
from components.commands.verify.updater_lag import COMPONENT, UpdaterProgress
from components.lib.lake.updater_state import FailingTable

REFRESH = f"astha refresh {COMPONENT}"
RUN = "astha run"


class DiffContext(msgspec.Struct, frozen=True):
    """What a cause depends on. `passed`: whether the updater passed the differences; `waited_s`: the wait for it."""

    table: str
    found: IcebergState | None
    updater: UpdaterProgress
    trouble: FailingTable | None
    passed: bool
    waited_s: float


def differences_of(diff: TableDiff, context: DiffContext) -> Iterator[Difference]:
    """Yields the differences of one table, each with its cause."""
    table, found = context.table, context.found
    if found is not None and found.external_commits:
        yield Difference(DifferenceKind.EXTERNAL_COMMIT, found.external_commits, of_external_commit(table))

    def lagging(behind: int) -> Cause:
        if context.trouble is not None:
            return of_trouble(context.trouble)
        return of_files(table, behind, found, context.updater, context.passed, context.waited_s)

    for kind, text in sorted(diff.findings):
        yield Difference(kind, [text], _of_finding(kind, text, context) or lagging(behind=1))
    files = classify(diff.missing, diff.extra)
    for kind, some in ((DifferenceKind.NOT_COMMITTED, files.missing), (DifferenceKind.NOT_REGISTERED, files.extra)):
        if some:
            items = [f"{file.path} ({file.rows:,} rows, {file.size_bytes:,} bytes)" for file in some]
            yield Difference(kind, items, lagging(behind=diff.files))
    if files.described:
        items = [
            f"{ours.path}: {ours.rows:,} rows, {ours.size_bytes:,} bytes, {ours.partition_path!r} registered, "
            f"{theirs.rows:,} rows, {theirs.size_bytes:,} bytes, {theirs.partition_path!r} in Iceberg"
            for ours, theirs in files.described
        ]
        yield Difference(DifferenceKind.DESCRIBED_DIFFERENTLY, items, lagging(behind=diff.files))


def _of_finding(kind: DifferenceKind, text: str, context: DiffContext) -> Cause | None:
    match kind:
        case DifferenceKind.STOPPED if context.trouble is None:
            return of_stop(text, context.updater)
        case DifferenceKind.UNREADABLE:
            return of_unreadable(text)
        case DifferenceKind.NO_ANSWER:
            return of_no_answer(context.table)
        case DifferenceKind.STAMP:
            return of_stamp(context.table, context.updater)
        case DifferenceKind.TWICE:
            return of_duplicate()
        case _:
            return None


def of_files(
    table: str, behind: int, found: IcebergState | None, updater: UpdaterProgress, passed: bool, waited_s: float
) -> Cause:
    """Of files, a schema or a table that differs in Iceberg; `behind` is their number."""
    if found is not None and found.external_commits:
        return Cause("another engine has committed, and the updater does not overwrite that", _decide(table))
    if found is not None and found.stopped is not None:
        return of_stop(found.stopped, updater)
    if found is not None and found.unreadable is not None:
        return of_unreadable(found.unreadable)
    if updater.entry is None:
        return Cause(
            f"{updater}: nothing has been committed to Iceberg yet",
            f"put {COMPONENT} into subscriptions.yaml, then `{RUN}`",
        )
    if updater.is_paused:
        command = f"astha resume {COMPONENT}" if updater.daemon else f"{RUN}`, then `astha resume {COMPONENT}"
        return Cause(f"the updater is behind by {behind:,}: {updater}", f"`{command}`")
    if passed:
        return _lost(table, found, updater)
    if not updater.daemon:
        return Cause(f"the updater is behind by {behind:,}: {updater}", f"`{RUN}`: it catches up by itself")
    if updater.is_live:
        return Cause(
            f"the updater is behind by {behind:,} after {waited_s:.0f} s: {updater}",
            "wait, and verify again with a longer --timeout; `astha status` shows its progress",
        )
    return Cause(
        f"the updater is behind by {behind:,}: {updater}", f"`astha status` shows the reason; then `{REFRESH}`"
    )


def _lost(table: str, found: IcebergState | None, updater: UpdaterProgress) -> Cause:
    """A refresh trusts the stamp's digest: a wrong stamp has to be overwritten by a revert."""
    if found is not None and found.stamp_is_wrong:
        return Cause(
            f"Iceberg's metadata was changed by another tool; the updater has passed this: {updater}",
            _refreshed(f"astha iceberg revert {table}", updater),
        )
    return Cause(f"the updater has passed this, but Iceberg does not have it: {updater}", _refreshed(REFRESH, updater))


def of_external_commit(table: str) -> Cause:
    return Cause("another engine has committed to the table, which Astha never overwrites by itself", _decide(table))


def of_stop(reason: str, updater: UpdaterProgress) -> Cause:
    return Cause(
        f"the updater has stopped this table: {reason}",
        _refreshed(REFRESH, updater) + ", once the reason is resolved",
    )


def of_trouble(trouble: FailingTable) -> Cause:
    """The updater's reason names the remedy; it retries a table that is not stopped by itself."""
    if trouble.stopped:
        return Cause(trouble.summary, f"`{REFRESH}`, once the reason is resolved")
    return Cause(
        trouble.summary, "fix what the reason names: the updater retries the table; see `astha iceberg status`"
    )


def of_no_answer(table: str) -> Cause:
    return Cause(
        f"the storage of {table} can't be reached, refuses, or takes longer than --timeout",
        f"repair it, then `astha verify {table}`; other tables were verified",
    )


def of_unreadable(problem: str) -> Cause:
    """The message of a `TableProblem` names the remedy itself."""
    reason = "the catalog's table of this name is unknown, damaged, or of an unsupported kind"
    if "astha " in problem or "rename" in problem:
        return Cause(reason, None)
    return Cause(
        reason, f"restore it, or drop the table from the catalog: `{REFRESH}` then creates it from the registry"
    )


def of_lost_snapshot(table: str) -> Cause:
    return Cause(
        "another tool has changed or removed the tag, or the Iceberg table was restored or created again",
        f"restore the catalog's row or the tag, or give the snapshot up: `astha snapshot expire {table} --tag TAG`",
    )


def of_unknown_tag() -> Cause:
    return Cause(
        "rows of table_snapshots were removed by hand, or the registry was restored to an older state",
        "drop the tag with another Iceberg tool once the snapshot is not needed",
    )


def of_duplicate() -> Cause:
    return Cause(
        "the same file was added twice, by another engine or by hand: its rows are read twice",
        f"drop the table from the catalog: `{REFRESH}` then creates it from the registry",
    )


def of_stamp(table: str, updater: UpdaterProgress) -> Cause:
    return Cause(
        "the table's properties or metadata were changed by hand",
        _refreshed(f"astha iceberg revert {table}", updater),
    )


def of_statistics(table: str) -> Cause:
    return Cause(
        "rows were changed other than through the registry's API", f"`astha verify --repair-statistics {table}`"
    )


def of_leftover(updater: UpdaterProgress) -> Cause:
    return Cause(f"the table was dropped, and the updater has not followed: {updater}", _refreshed(REFRESH, updater))


def of_object(kind: DifferenceKind, table: str) -> Cause:
    """Of a file in storage."""
    if kind is DifferenceKind.DELETES_MISSING:
        return Cause(
            "it was deleted from storage: readers of its partition fail, and its rows would come back without it",
            "restore it from a copy",
        )
    return of_missing_object(table) if kind is DifferenceKind.FILE_MISSING else of_changed_object(table)


def of_missing_object(table: str) -> Cause:
    return Cause("it was deleted from storage: its rows are lost unless there is a copy", _without(table))


def of_changed_object(table: str) -> Cause:
    return Cause("it was truncated, overwritten or damaged after its registration", _without(table))


def _without(table: str) -> str:
    return f"restore it from a copy, or roll back to a snapshot without it: `astha snapshot rollback {table}`"


def _decide(table: str) -> str:
    return f"`astha iceberg adopt {table}` adopts it, `astha iceberg revert {table}` reverts it"


def _refreshed(command: str, updater: UpdaterProgress) -> str:
    return f"`{command}`" if updater.daemon else f"`{RUN}`, then `{command}`"
