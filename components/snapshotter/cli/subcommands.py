"""The subcommands of `astha snapshot`. PyIceberg takes a second to load, so each command imports it when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.cli.progress import progress
from astha.settings import Settings
from components.lib.lake.table_lookup import find_table
from components.snapshotter.cli_context import CliContext, run_with_context
from components.snapshotter.cli_output import print_reports, print_snapshots, to_record
from registry.models import LakeTable, TableSnapshot

if TYPE_CHECKING:
    from components.snapshotter.retention import RetentionReport
    from components.snapshotter.rollback import RollbackPlan

_POLL_S = 0.1


@click.command("create", short_help="Request a snapshot and wait for it.")
@click.argument("name", metavar="TABLE")
@click.option("--tag", help="Name of the snapshot, also in Iceberg. Default: generated.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the snapshot exists.")
@click.option(
    "--timeout", "timeout_s", type=float, default=600.0, show_default=True, help="How long to wait, in seconds."
)
@settings_options
@json_option
def create_command(
    name: str, tag: str | None, wait: bool, timeout_s: float, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Request a snapshot of TABLE that contains everything inserted before, and wait for it.

    The daemon's snapshotter creates it. Exits with 1 if that fails, and with 3 if no daemon runs: the request stays
    open, and is fulfilled when one does.

    \b
    Example:
      astha snapshot create sales.orders --tag q1-close
    """

    async def request(context: CliContext) -> tuple[LakeTable, TableSnapshot, str | None]:
        table = await find_table(context.store, name)
        row = await context.store.request_snapshot(table.id, tag=tag, reason="astha snapshot create")
        unavailable = await context.why_unavailable() if wait else None
        if wait and unavailable is None:
            row = await _wait_for_result(context, row, timeout_s, quiet=as_json)
        return table, row, unavailable

    table, row, unavailable = run_with_context(reload(), request)
    shown = to_record(table, row)
    if as_json:
        print_json(shown)
    if row.status == "failed":
        raise Failure(f"no snapshot of {shown['table']}: {row.reason}", Exit.PROBLEM)
    if row.status == "requested" and wait:
        reason = unavailable or f"no result within {timeout_s:.0f} s"
        raise Failure(f"{reason}: snapshot {row.id} of {shown['table']} stays requested", Exit.UNAVAILABLE)
    if not as_json:
        state = f"snapshot {row.snapshot_id}" if row.status == "created" else f"requested ({row.id})"
        click.echo(f"{shown['table']}: {row.tag or 'a snapshot'}: {state}")


async def _wait_for_result(context: CliContext, row: TableSnapshot, timeout_s: float, *, quiet: bool) -> TableSnapshot:
    end = context.clock.monotonic() + timeout_s
    with progress("requested; waiting until Iceberg contains everything inserted before", quiet=quiet):
        while context.clock.monotonic() < end:
            found = await context.store.list_snapshots(row.table_id, after=row.id - 1, limit=1)
            if not found or found[0].id != row.id:
                raise Failure("the table was dropped", Exit.PROBLEM)
            if found[0].status != "requested":
                return found[0]
            await context.clock.sleep(_POLL_S)
    return row


@click.command("list", short_help="List snapshots.")
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--all", "everything", is_flag=True, help="Include failed and expired snapshots.")
@settings_options
@json_option
def list_command(name: str | None, everything: bool, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show the snapshots of TABLE, or of all tables.

    \b
    Example:
      astha snapshot list sales.orders --all
    """

    async def read(context: CliContext) -> list[dict[str, Any]]:
        found = []
        for table in await context.tables_of(name):
            rows = await context.rows(table)
            found += [to_record(table, row) for row in rows if everything or row.status in ("requested", "created")]
        return found

    rows = run_with_context(reload(), read)
    if as_json:
        print_json(rows)
    else:
        print_snapshots(rows)


@click.command("expire", short_help="Expire snapshots by policy or by tag.")
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--tag", "tags", multiple=True, help="Expire this snapshot, whatever the policy says. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Only show what would expire, and why the others are kept.")
@settings_options
@json_option
def expire_command(
    name: str | None, tags: tuple[str, ...], dry_run: bool, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Expire snapshots of TABLE, or of all tables, by `snapshot.keep` and `snapshot.keep-for`.

    A snapshot's name is free at once; its data stays readable for the table's `snapshot.grace`. Tags of other tools are
    never changed.

    \b
    Examples:
      astha snapshot expire --dry-run
      astha snapshot expire sales.orders --tag q1-close
    """
    if tags and name is None:
        raise Failure("--tag needs a TABLE", Exit.USAGE)

    async def expire(context: CliContext) -> list[RetentionReport]:
        from components.snapshotter.policy import PolicyProblem

        reports = []
        if not dry_run and not tags:
            await context.require_clock()
        tables = await context.tables_of(name)
        for number, table in enumerate(tables):
            show("", number, len(tables))
            await _require_tags(context, table, tags)
            try:
                reports.append(await (await context.expiration()).expire(table, tags=tags, dry_run=dry_run))
            except PolicyProblem as problem:
                reports.append(context.failed(table, str(problem)))
        return reports

    with progress("expiring snapshots", quiet=as_json, unit="tables") as show:
        reports = run_with_context(reload(), expire)
    _show(reports, "expires" if dry_run else "expired", dry_run, as_json)


async def _require_tags(context: CliContext, table: LakeTable, tags: Sequence[str]) -> None:
    known = {row.tag for row in await context.rows(table) if row.status == "created"}
    for tag in tags:
        if tag not in known:
            raise Failure(f"{table.database}.{table.name} has no snapshot with the tag {tag!r}", Exit.PROBLEM)


@click.command("clean", short_help="Delete files that no snapshot needs.")
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted, and why the rest is kept.")
@click.option(
    "--uploads-after",
    "stale_s",
    type=float,
    help="Age in seconds of abandoned uploads to delete, at least lake.intents_stale_after_s (default). Only without "
    "TABLE.",
)
@settings_options
@json_option
def clean_command(
    name: str | None, dry_run: bool, stale_s: float | None, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Delete removed files of TABLE, or of all tables, that no snapshot needs and whose grace period is over.

    Without TABLE, files of abandoned uploads are deleted, too. Exits with 1 if a table could not be cleaned.

    \b
    Example:
      astha snapshot clean --dry-run
    """
    from components.lib.lake.registration.upload_intents import CleanupResult

    settings = reload()
    least_s = settings.lake.intents_stale_after_s
    if stale_s is not None and stale_s < least_s:
        raise Failure(
            f"--uploads-after {stale_s:g} is less than lake.intents_stale_after_s ({least_s:g}), which an upload in "
            "progress may reach: give at least that",
            Exit.USAGE,
        )

    async def clean(context: CliContext) -> tuple[list[RetentionReport], CleanupResult]:
        if not dry_run:
            await context.require_clock()
        if name is not None:
            table = await find_table(context.store, name)
            return await (await context.cleanup()).clean(table.id, dry_run=dry_run), CleanupResult([], [], [])
        reports = await (await context.cleanup()).clean(dry_run=dry_run)
        return reports, await (await context.cleanup()).clean_intents(stale_s or least_s, dry_run=dry_run)

    with progress("cleaning up", quiet=as_json):
        reports, uploads = run_with_context(settings, clean)
    if not as_json:
        verb = "would be deleted" if dry_run else "deleted"
        for path in uploads.deleted:
            click.echo(f"{verb}  {path}  abandoned upload")
        for path, reason in uploads.refused.items():
            click.echo(f"kept  {path}  {reason}", err=True)
        for path in uploads.failed:
            click.echo(f"kept  {path}  can't be deleted now", err=True)
    _show(reports, "would be deleted" if dry_run else "deleted", dry_run, as_json, uploads)


@click.command("rollback", short_help="Roll a table back to a snapshot.")
@click.argument("name", metavar="TABLE")
@click.argument("snapshot", metavar="TAG|SNAPSHOT_ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@settings_options
@json_option
def rollback_command(
    name: str, snapshot: str, yes: bool, dry_run: bool, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Roll TABLE back to the files of a snapshot: one transaction in the registry; Iceberg follows.

    The schema is not rolled back. Rows inserted since the snapshot leave the table; another rollback restores them
    until their files are deleted. Rows inserted during the rollback stay. Refused if a file of the snapshot is missing.

    \b
    Example:
      astha snapshot rollback sales.orders q1-close
    """
    settings = reload()

    async def plan(context: CliContext) -> RollbackPlan:
        return await (await context.rollback()).plan(await find_table(context.store, name), snapshot)

    async def perform(context: CliContext) -> RollbackPlan:
        return await (await context.rollback()).roll_back(await find_table(context.store, name), snapshot)

    with progress(f"planning the rollback of {name}", quiet=as_json):
        found = run_with_context(settings, plan)
    changes = bool(found.removed or found.restored)
    if changes and not dry_run:
        if not yes:
            _confirm(name, found)
        with progress(f"rolling {name} back", quiet=as_json):
            found = run_with_context(settings, perform)
    if as_json:
        counts = {"removed": len(found.removed), "restored": len(found.restored), "rows": found.rows}
        print_json({"table": name, "snapshot_id": found.snapshot_id, "changed": changes and not dry_run, **counts})
    elif not changes:
        click.echo(f"{name} has the files of snapshot {found.snapshot_id} already")
    else:
        click.echo(
            f"{name} {'would be' if dry_run else 'is'} rolled back to snapshot {found.snapshot_id}: {_counts(found)}"
        )


def _confirm(name: str, plan: RollbackPlan) -> None:
    question = f"{name} is rolled back to snapshot {plan.snapshot_id}: {_counts(plan)}"
    if not sys.stdin.isatty():
        raise Failure(f"{question}. Repeat with --yes to confirm", Exit.USAGE)
    if not click.confirm(f"{question}. Continue?", err=True):
        raise Failure("nothing was changed", Exit.PROBLEM)


def _counts(plan: RollbackPlan) -> str:
    return f"{len(plan.removed):,} files removed, {len(plan.restored):,} restored, {plan.rows:+,} rows"


def _show(reports: Sequence[RetentionReport], verb: str, dry_run: bool, as_json: bool, uploads: object = None) -> None:
    if as_json:
        shown: dict[str, object] = {"dry_run": dry_run, "tables": [msgspec.to_builtins(report) for report in reports]}
        if uploads is not None:
            shown["uploads"] = uploads
        print_json(shown)
    else:
        print_reports(reports, verb, explain=dry_run)
    if any(report.problem for report in reports):
        raise click.exceptions.Exit(Exit.PROBLEM)
