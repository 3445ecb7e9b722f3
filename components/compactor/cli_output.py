"""The output of the commands, as tables and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from astha.cli.output import print_pairs, time_text
from astha.cli.progress import progress
from astha.cli.table import print_rows
from astha.quantities import format_duration, format_size
from registry.json_text import JsonValue, parse_json
from registry.models import Compaction, Savings

if TYPE_CHECKING:
    from components.compactor.execution.job import CompactionJob
    from components.compactor.execution.outcome import JobOutcome
    from components.compactor.explain import TableExplanation
    from components.compactor.planning.planner import PlannedJob

_LONGEST = 80


def row_of(row: Compaction) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "explanation": parse_json(row.explanation)}


def saved(sums: Savings) -> dict[str, Any]:
    """Each file removed is one file open less for every query that reads its partition."""
    return {
        **msgspec.structs.asdict(sums),
        "files_saved": sums.input_files - sums.output_files,
        "bytes_saved": sums.input_bytes - sums.output_bytes,
    }


def print_decisions(rows: Sequence[Compaction]) -> None:
    if not rows:
        click.echo("no decisions yet")
        return
    print_rows(
        ["id", "decided", "table", "partition", "status", "trigger", "files", "bytes", "strategy", "rule and reason"],
        [
            [
                str(row.id),
                time_text(row.decided_at),
                row.table_name,
                row.partition_path or "-",
                row.status + (" (cancelling)" if row.cancel_requested and row.status == "running" else ""),
                row.trigger,
                f"{row.input_files:,} -> {row.output_files:,}" if row.status == "done" else f"{row.input_files:,}",
                format_size(row.input_bytes),
                row.strategy or "",
                short(": ".join(filter(None, (row.rule, row.reason)))),
            ]
            for row in rows
        ],
        right=("id", "files", "bytes"),
        optional=("trigger", "bytes", "strategy", "id"),
    )


def print_savings(sums: Sequence[Savings]) -> None:
    if not sums:
        click.echo("no compactions yet")
        return
    total = Savings(0, "all", *(sum(getattr(one, name) for one in sums) for name in _SUMMED))
    print_rows(
        ["table", "compactions", "files before", "after", "opens saved", "bytes before", "after", "rows"],
        [
            [
                one.table_name,
                f"{one.compactions:,}",
                f"{one.input_files:,}",
                f"{one.output_files:,}",
                f"{one.input_files - one.output_files:,}",
                format_size(one.input_bytes),
                format_size(one.output_bytes),
                f"{one.row_count:,}",
            ]
            for one in (*sums, *([total] if len(sums) > 1 else []))
        ],
        right=("compactions", "files before", "after", "opens saved", "bytes before", "rows"),
    )


def explanation_of(explanation: TableExplanation) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(explanation, decisions=[]))
    return {**plain, "decisions": [row_of(row) for row in explanation.decisions]}


def print_explanation(explanation: TableExplanation) -> None:
    click.echo(f"{explanation.table}")
    if explanation.problem is not None:
        click.echo(f"not compacted, because its settings can't be read: {explanation.problem}")
    print_pairs(dict(_shown_setting(name, value) for name, value in explanation.policy.items()))
    click.echo("")
    if explanation.partitions:
        _print_partitions(explanation)
    else:
        click.echo("no files yet: nothing to decide")
    click.echo("\nlast decisions")
    print_decisions(explanation.decisions)


_PROPERTY_NAMES = {"target_bytes": "target-size", "max_group_bytes": "max-group-size", "copy_above_bytes": "copy-above"}


def _shown_setting(name: str, value: JsonValue) -> tuple[str, str]:
    """Returns the name of the table's property, and the value as it is written there."""
    shown = _PROPERTY_NAMES.get(name, name.removesuffix("_ms").replace("_", "-"))
    if value is None:
        return shown, "none"
    if isinstance(value, bool):
        return shown, str(value).lower()
    if name.endswith("_bytes") and isinstance(value, int):
        return shown, format_size(value)
    if name.endswith("_ms") and isinstance(value, int):
        return shown, format_duration(value)
    return shown, str(value)


def _print_partitions(explanation: TableExplanation) -> None:
    print_rows(
        ["partition", "files", "bytes", "small", "to merge", "rewritten", "score", "status", "why"],
        [
            [
                one.partition or "(whole table)",
                f"{one.files:,}",
                format_size(one.size_bytes),
                f"{one.small_files:,}",
                f"{one.to_merge:,}",
                format_size(one.bytes_to_rewrite),
                f"{one.score:,.1f}",
                one.status,
                ": ".join(filter(None, (one.rule, one.reason)))
                + ("" if one.until_ms is None else f" (until {time_text(one.until_ms)})"),
            ]
            for one in explanation.partitions
        ],
        right=("files", "bytes", "small", "to merge", "rewritten", "score"),
    )
    for one in explanation.partitions:
        place = one.partition or "(whole table)"
        if one.delete_files:
            click.echo(f"{place}: {one.delete_files:,} delete files, {one.deleted_rows:,} rows deleted by position")
        for file in one.left_out:
            click.echo(f"{place}: left out until {time_text(file.until_ms)}: {file.path} {file.reason}")


def plan_of(path: str, planned: PlannedJob) -> dict[str, Any]:
    plan = planned.plan
    return {
        "partition": path,
        "rule": plan.rule,
        "reason": plan.reason,
        "strategy": plan.strategy,
        "why": plan.why,
        "input_files": plan.input_files,
        "input_bytes": plan.input_bytes,
        "output_files": sum(group.outputs for group in plan.groups),
        "groups": len(plan.groups),
    }


def print_plans(name: str, plans: Sequence[dict[str, Any]]) -> None:
    if not any(plan["groups"] for plan in plans):
        click.echo(f"{name}: no partition has two small files")
        return
    print_rows(
        ["partition", "files", "become", "bytes", "groups", "strategy", "why"],
        [
            [
                plan["partition"] or "(whole table)",
                f"{plan['input_files']:,}",
                f"{plan['output_files']:,}",
                format_size(plan["input_bytes"]),
                str(plan["groups"]),
                plan["strategy"] if plan["groups"] else "-",
                plan["why"] or plan["reason"] or "",
            ]
            for plan in plans
        ],
        right=("files", "become", "bytes", "groups"),
    )


def outcome_of(path: str, outcome: JobOutcome) -> dict[str, Any]:
    plain = msgspec.structs.asdict(outcome)
    del plain["error"]
    return {"partition": path, **plain}


def print_outcomes(name: str, outcomes: Sequence[dict[str, Any]]) -> None:
    click.echo(name)
    print_rows(
        ["partition", "status", "files", "became", "bytes", "became ", "rows", "strategy", "seconds", "why"],
        [
            [
                one["partition"] or "(whole table)",
                one["status"],
                f"{one['input_files']:,}",
                f"{one['output_files']:,}",
                format_size(one["input_bytes"]),
                format_size(one["output_bytes"]),
                f"{one['rows']:,}",
                one["strategy"] or "-",
                f"{one['seconds'].get('all', 0.0):.2f}",
                short(one["reason"] or one["why"] or ""),
            ]
            for one in outcomes
        ],
        right=("files", "became", "bytes", "became ", "rows", "seconds"),
    )


@contextmanager
def job_progress(name: str, *, quiet: bool) -> Iterator[Callable[[list[CompactionJob]], None]]:
    """Shows the partitions and groups that are done, and the bytes of all jobs."""
    with progress(f"compacting {name}", quiet=quiet, unit="bytes") as report:
        report.note("starting Spark")

        def show(jobs: list[CompactionJob]) -> None:
            done = sum(job.bytes_done for job in jobs)
            if done:
                groups = sum(len(job.spec.groups) for job in jobs)
                place = f"{sum(job.groups_done for job in jobs):,} of {groups:,} groups"
                report(place, done, sum(job.bytes_total for job in jobs))

        yield show


def short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


_SUMMED = ("compactions", "input_files", "input_bytes", "output_files", "output_bytes", "row_count")
