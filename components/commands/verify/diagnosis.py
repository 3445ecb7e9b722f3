"""The likely cause of a difference, and the command that helps. Pure."""

from __future__ import annotations

from components.commands.verify.iceberg_state import Committed
from components.commands.verify.report import Cause
from components.commands.verify.updater_lag import COMPONENT, UpdaterState
from components.lib.lake.updater_state import FailingTable

REFRESH = f"astha refresh {COMPONENT}"
RUN = "astha run"


def of_files(
    table: str, behind: int, found: Committed | None, updater: UpdaterState, passed: bool, waited_s: float
) -> Cause:
    """Of files, a schema or a table that Iceberg has not as the registry has; `behind` is their number."""
    if found is not None and found.foreign:
        return Cause("another engine has committed, and the updater leaves the table alone", _decide(table))
    if found is not None and found.stopped is not None:
        return of_stop(table, found.stopped, updater)
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
            "wait, and verify again with a longer --timeout; `astha status` shows whether it moves",
        )
    return Cause(f"the updater is behind by {behind:,}: {updater}", f"`astha status` says why; then `{REFRESH}`")


def _lost(table: str, found: Committed | None, updater: UpdaterState) -> Cause:
    """A refresh compares stamps first: one that is wrong in itself has to be overwritten."""
    if found is not None and found.stamp_is_wrong:
        return Cause(
            f"Iceberg's metadata were changed behind the updater's back, which has passed this: {updater}",
            _refreshed(f"astha iceberg revert {table}", updater),
        )
    return Cause(f"the updater has passed this and has it not: {updater}", _refreshed(REFRESH, updater))


def of_foreign_commit(table: str) -> Cause:
    return Cause("another engine has committed to the table; Astha never overwrites that by itself", _decide(table))


def of_stop(table: str, reason: str, updater: UpdaterState) -> Cause:
    return Cause(
        f"the updater has stopped at this table: {reason}",
        _refreshed(REFRESH, updater) + ", once the reason is gone",
    )


def of_trouble(trouble: FailingTable) -> Cause:
    """The updater's reason names the way out; a table that is not stopped it tries again by itself."""
    if trouble.stopped:
        return Cause(trouble.summary, f"`{REFRESH}`, once the reason is gone")
    remedy = "mend what the reason names: the table is tried again by itself; `astha iceberg status`"
    return Cause(trouble.summary, remedy)


def of_silence(table: str) -> Cause:
    return Cause(
        f"what holds the metadata of {table} can't be reached, refuses, or takes longer than --timeout",
        f"mend it, then `astha verify {table}`; other tables were verified",
    )


def of_unreadable(problem: str) -> Cause:
    """A `TableProblem` names the way out itself."""
    why = "what the catalog has for this table is somebody else's, damaged, or of a kind that can't be written here"
    if "astha " in problem or "rename" in problem:
        return Cause(why, None)
    return Cause(why, f"restore it, or drop the table from the catalog: `{REFRESH}` then creates it from the registry")


def of_lost_snapshot(table: str) -> Cause:
    return Cause(
        "another tool has changed or removed the tag, or the Iceberg table was restored or created again",
        f"restore the catalog's row or the tag, or give the snapshot up: `astha snapshot expire {table} --tag TAG`",
    )


def of_unknown_tag() -> Cause:
    return Cause(
        "rows of table_snapshots were removed by hand, or the registry was restored to an older state",
        "drop the tag with another Iceberg tool once nobody needs the snapshot",
    )


def of_double() -> Cause:
    return Cause(
        "the same file was added twice, by another engine or by hand: its rows are read twice",
        f"drop the table from the catalog: `{REFRESH}` then creates it from the registry",
    )


def of_stamp(table: str, updater: UpdaterState) -> Cause:
    return Cause(
        "the table's properties were changed by hand, or its metadata were",
        _refreshed(f"astha iceberg revert {table}", updater),
    )


def of_statistics(table: str) -> Cause:
    return Cause(
        "rows were changed by other means than the registry's verbs", f"`astha verify --repair-statistics {table}`"
    )


def of_leftover(updater: UpdaterState) -> Cause:
    return Cause(f"the table was dropped, and the updater has not followed: {updater}", _refreshed(REFRESH, updater))


def of_missing_object(table: str) -> Cause:
    return Cause("somebody has deleted it from storage: its rows are lost unless there is a copy", _without(table))


def of_changed_object(table: str) -> Cause:
    return Cause("it was cut off, overwritten or damaged after it was registered", _without(table))


def _without(table: str) -> str:
    return f"restore it from a copy, or go back to a snapshot that does without it: `astha snapshot rollback {table}`"


def _decide(table: str) -> str:
    return f"`astha iceberg adopt {table}` takes it over, `astha iceberg revert {table}` undoes it"


def _refreshed(command: str, updater: UpdaterState) -> str:
    return f"`{command}`" if updater.daemon else f"`{RUN}`, then `{command}`"
