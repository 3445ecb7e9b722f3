"""`astha compaction`: what is compacted and why, and compaction by hand.

PySpark and Arrow take seconds to load: they are imported by who uses them, not by `astha --help`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.settings import Settings
from components.compactor.cli_context import Desk, run_at_desk
from components.compactor.cli_output import (
    job_progress,
    outcome_of,
    plan_of,
    print_decisions,
    print_outcomes,
    print_plans,
    print_savings,
    print_standing,
    row_of,
    saved,
    standing_of,
)
from registry.models import Compaction, CompactionStatus, Savings

if TYPE_CHECKING:
    from components.compactor.execution.outcome import Outcome
    from components.compactor.explain import Standing
    from components.compactor.merge import Strategy
    from components.compactor.planning.planner import Planned

_STRATEGIES = ("auto", "copy", "binpack", "sort", "zorder")

_STATUSES: tuple[CompactionStatus, ...] = (
    "waiting", "declined", "running", "done", "aborted", "failed", "cancelled",
)  # fmt: skip


@click.group("compaction", short_help="Compaction: what is decided and why, by hand, what it has saved.")
def commands() -> None:
    """Small files become right-sized ones, without losing a row."""


@commands.command("list")
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--status", "statuses", multiple=True, type=click.Choice(_STATUSES), help="Only these. Repeatable.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The newest so many.")
@settings_options
@json_option
def list_command(
    name: str | None,
    statuses: tuple[CompactionStatus, ...],
    limit: int,
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Show what was decided, newest first: what runs, what waits, what was done or declined, and why."""

    async def look(desk: Desk) -> list[Compaction]:
        table_id = None if name is None else await desk.table_id(name)
        return await desk.store.list_compactions(table_id=table_id, statuses=statuses, limit=limit)

    rows = run_at_desk(reload(), look)
    if as_json:
        print_json([row_of(row) for row in rows])
    else:
        print_decisions(rows)


@commands.command("cancel")
@click.argument("name", metavar="TABLE")
@click.option("--partition", help="Only this one, such as day=2026-01-31.")
@settings_options
@json_option
def cancel_command(name: str, partition: str | None, reload: Callable[[], Settings], as_json: bool) -> None:
    """Cancel what waits or runs for TABLE, whoever runs it. What runs ends within seconds and leaves nothing.

    It is decided again when more small files come. `astha tables alter TABLE --property compaction.enabled=false` turns
    it off.
    """

    async def ask(desk: Desk) -> list[Compaction]:
        return await desk.store.request_cancel(await desk.table_id(name), partition_path=partition)

    rows = run_at_desk(reload(), ask)
    if as_json:
        print_json([row_of(row) for row in rows])
        return
    for row in rows:
        what = "is being cancelled" if row.status == "running" else "waits no more"
        click.echo(f"{row.table_name} {row.partition_path or '(whole table)'}: {what}")
    if not rows:
        click.echo(f"{name}: nothing waits or runs")


@commands.command("savings")
@click.argument("name", metavar="[TABLE]", required=False)
@settings_options
@json_option
def savings_command(name: str | None, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show what compaction has saved: files, bytes, and the opens of every query."""

    async def add_up(desk: Desk) -> list[Savings]:
        return await desk.store.get_savings(table_id=None if name is None else await desk.table_id(name))

    sums = run_at_desk(reload(), add_up)
    if as_json:
        print_json([saved(one) for one in sums])
    else:
        print_savings(sums)


@commands.command("explain")
@click.argument("name", metavar="TABLE")
@settings_options
@json_option
def explain_command(name: str, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show what the policy says of each partition of TABLE now, and what was decided last.

    Counts, threshold, score and what it waits for, from the registry's rows as they are: no daemon is needed.
    """

    async def look(desk: Desk) -> Standing:
        from components.compactor.explain import explain

        return await explain(desk.store, desk.clock, await desk.table(name), desk.component_settings().policy)

    standing = run_at_desk(reload(), look)
    if as_json:
        print_json(standing_of(standing))
    else:
        print_standing(standing)


@commands.command("run")
@click.argument("name", metavar="TABLE")
@click.option("--partition", help="Only this one, such as day=2026-01-31.")
@click.option("--strategy", type=click.Choice(_STRATEGIES), help="Instead of what the table's properties say.")
@click.option("--dry-run", is_flag=True, help="Only say what would be merged, and why.")
@settings_options
@json_option
def run_command(
    name: str,
    partition: str | None,
    strategy: Strategy | None,
    dry_run: bool,
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Compact TABLE now: every partition with two small files or more, whatever the thresholds say.

    It runs in this process, with a Spark session of its own, beside a daemon or without one. Ctrl-C ends it and leaves
    nothing. Exits with 1 if a partition could not be compacted, with 3 if there is no Spark.
    """

    async def work(desk: Desk) -> tuple[list[tuple[str, Planned]], list[Outcome]]:
        from components.compactor.planning.planner import Wish
        from components.compactor.run_once import plan_table, run_jobs

        wish = Wish(trigger="manual", forced=True, strategy=strategy)
        planned = await plan_table(desk, await desk.table(name), partition, wish)
        assignments = [found.assignment for _, found in planned if found.assignment is not None]
        if dry_run or not assignments:
            return planned, []
        with job_progress(quiet=as_json) as progress:
            return planned, await run_jobs(desk, assignments, progress)

    from astha.telemetry import configure_logging, set_level

    settings = reload()
    configure_logging(settings.log, settings.concealment())
    set_level("warning")  # what else happens is shown here, or in the journal
    planned, outcomes = run_at_desk(settings, work)
    if not outcomes:
        found = [plan_of(path, one) for path, one in planned]
        if as_json:
            print_json({"plans": found, "outcomes": []})
        else:
            print_plans(name, found)
        return
    paths = [path for path, one in planned if one.assignment is not None]
    told: list[dict[str, Any]] = [outcome_of(path, one) for path, one in zip(paths, outcomes, strict=True)]
    if as_json:
        print_json({"plans": [plan_of(path, one) for path, one in planned], "outcomes": told})
    else:
        print_outcomes(name, told)
    _exit_with(name, outcomes)


def _exit_with(name: str, outcomes: list[Outcome]) -> None:
    from components.lib.spark.errors import SessionProblem

    failed = [one for one in outcomes if one.status != "done"]
    if not failed:
        return
    sys.stdout.flush()
    missing = next((one for one in failed if isinstance(one.error, SessionProblem)), None)
    if missing is not None:
        raise Failure(f"{name}: {missing.reason}", Exit.UNAVAILABLE)
    raise Failure(f"{name}: {len(failed)} of {len(outcomes)} partitions: {failed[0].reason}", Exit.PROBLEM)
