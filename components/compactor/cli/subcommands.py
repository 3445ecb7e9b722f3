"""The subcommands of `astha compaction`. PySpark and Arrow take seconds to load: commands import them when they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.settings import Settings
from components.compactor.cli_context import CompactionCliContext, run_with_context
from components.compactor.cli_output import (
    explanation_of,
    job_progress,
    outcome_of,
    plan_of,
    print_decisions,
    print_explanation,
    print_outcomes,
    print_plans,
    print_savings,
    row_of,
    saved,
)
from registry.models import Compaction, CompactionStatus, Savings

if TYPE_CHECKING:
    from components.compactor.execution.outcome import JobOutcome
    from components.compactor.explain import TableExplanation
    from components.compactor.merge import Strategy
    from components.compactor.planning.planner import PlannedJob

_STRATEGIES = ("auto", "copy", "binpack", "sort", "zorder")

_STATUSES: tuple[CompactionStatus, ...] = (
    "waiting", "declined", "running", "done", "aborted", "failed", "cancelled",
)  # fmt: skip


@click.command("list", short_help="List decisions with their status and reason.")
@click.argument("name", metavar="[TABLE]", required=False)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(_STATUSES),
    help="Show only decisions with this status. Repeatable.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Show at most this many, newest first."
)
@settings_options
@json_option
def list_command(
    name: str | None,
    statuses: tuple[CompactionStatus, ...],
    limit: int,
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Show decisions, newest first: running, waiting, done or declined, and why.

    \b
    Example:
      astha compaction list sales.orders --status running --status waiting
    """

    async def read(context: CompactionCliContext) -> list[Compaction]:
        table_id = None if name is None else await context.table_id(name)
        return await context.store.list_compactions(table_id=table_id, statuses=statuses, limit=limit)

    rows = run_with_context(reload(), read)
    if as_json:
        print_json([row_of(row) for row in rows])
    else:
        print_decisions(rows)


@click.command("cancel", short_help="Cancel waiting and running compactions.")
@click.argument("name", metavar="TABLE")
@click.option("--partition", help="Only this partition, such as day=2026-01-31.")
@settings_options
@json_option
def cancel_command(name: str, partition: str | None, reload: Callable[[], Settings], as_json: bool) -> None:
    """Cancel waiting and running compactions of TABLE, in any process. A running one ends within seconds and leaves no
    files.

    The partition is decided again when more small files are added. To turn compaction off, use
    `astha tables alter TABLE --property compaction.enabled=false`.

    \b
    Example:
      astha compaction cancel sales.orders --partition day=2026-01-31
    """

    async def request_cancel(context: CompactionCliContext) -> list[Compaction]:
        return await context.store.request_cancel(await context.table_id(name), partition_path=partition)

    rows = run_with_context(reload(), request_cancel)
    if as_json:
        print_json([row_of(row) for row in rows])
        return
    for row in rows:
        what = "is being cancelled" if row.status == "running" else "no longer waits"
        click.echo(f"{row.table_name} {row.partition_path or '(whole table)'}: {what}")
    if not rows:
        click.echo(f"{name}: no compaction waits or runs")


@click.command("savings", short_help="Show what compaction has saved.")
@click.argument("name", metavar="[TABLE]", required=False)
@settings_options
@json_option
def savings_command(name: str | None, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show what compaction has saved: files, bytes, and file opens per query.

    \b
    Example:
      astha compaction savings sales.orders
    """

    async def add_up(context: CompactionCliContext) -> list[Savings]:
        return await context.store.get_savings(table_id=None if name is None else await context.table_id(name))

    sums = run_with_context(reload(), add_up)
    if as_json:
        print_json([saved(one) for one in sums])
    else:
        print_savings(sums)


@click.command("explain", short_help="Explain what is decided for each partition now.")
@click.argument("name", metavar="TABLE")
@settings_options
@json_option
def explain_command(name: str, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show what the policy decides for each partition of TABLE now, and the last decisions.

    Counts, thresholds, scores and reasons are computed from the registry's rows. No daemon is needed.

    \b
    Example:
      astha compaction explain sales.orders
    """

    async def read(context: CompactionCliContext) -> TableExplanation:
        from components.compactor.explain import explain

        return await explain(
            context.store, context.clock, await context.table(name), context.component_settings().policy
        )

    explanation = run_with_context(reload(), read)
    if as_json:
        print_json(explanation_of(explanation))
    else:
        print_explanation(explanation)


@click.command("run", short_help="Compact a table now.")
@click.argument("name", metavar="TABLE")
@click.option("--partition", help="Only this partition, such as day=2026-01-31.")
@click.option("--strategy", type=click.Choice(_STRATEGIES), help="Override the strategy in the table's properties.")
@click.option("--dry-run", is_flag=True, help="Only show what would be merged, and why.")
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
    """Compact TABLE now: every partition with two or more small files, regardless of thresholds.

    It runs in this process, with its own Spark session, beside a daemon or without one. Ctrl-C stops it and leaves no
    files. Exits with 1 if a partition could not be compacted, with 3 if there is no Spark session.

    \b
    Examples:
      astha compaction run sales.orders --dry-run
      astha compaction run sales.orders --partition day=2026-01-31
    """

    async def work(context: CompactionCliContext) -> tuple[list[tuple[str, PlannedJob]], list[JobOutcome]]:
        from components.compactor.planning.planner import CompactionRequest
        from components.compactor.run_once import plan_table, run_jobs

        request = CompactionRequest(trigger="manual", forced=True, strategy=strategy)
        planned = await plan_table(context, await context.table(name), partition, request)
        specs = [found.spec for _, found in planned if found.spec is not None]
        if dry_run or not specs:
            return planned, []
        with job_progress(name, quiet=as_json) as show:
            return planned, await run_jobs(context, specs, show)

    from astha.telemetry import configure_logging, set_level

    settings = reload()
    configure_logging(settings.log, settings.redactor())
    set_level("warning")  # other events are printed by this command, or are in the journal
    planned, outcomes = run_with_context(settings, work)
    if not outcomes:
        found = [plan_of(path, one) for path, one in planned]
        if as_json:
            print_json({"plans": found, "outcomes": []})
        else:
            print_plans(name, found)
        return
    paths = [path for path, one in planned if one.spec is not None]
    printed: list[dict[str, Any]] = [outcome_of(path, one) for path, one in zip(paths, outcomes, strict=True)]
    if as_json:
        print_json({"plans": [plan_of(path, one) for path, one in planned], "outcomes": printed})
    else:
        print_outcomes(name, printed)
    _exit_with(name, outcomes)


def _exit_with(name: str, outcomes: list[JobOutcome]) -> None:
    from components.lib.spark.errors import SessionProblem

    failed = [one for one in outcomes if one.status != "done"]
    if not failed:
        return
    sys.stdout.flush()
    missing = next((one for one in failed if isinstance(one.error, SessionProblem)), None)
    if missing is not None:
        raise Failure(f"{name}: {missing.reason}", Exit.UNAVAILABLE)
    raise Failure(f"{name}: {len(failed)} of {len(outcomes)} partitions: {failed[0].reason}", Exit.PROBLEM)
