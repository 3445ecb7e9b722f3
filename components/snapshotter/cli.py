"""`astha snapshot`: ask for snapshots, see them, let them expire, clean up after them, go back to one.

PyIceberg takes a second to load: it is imported by who uses it, not by `astha --help`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.settings import Settings
from components.lib.lake.table_lookup import find_table
from components.snapshotter.cli_context import Desk, run_at_desk
from components.snapshotter.cli_output import print_reports, print_rows, row_of
from registry.models import LakeTable, TableSnapshot

if TYPE_CHECKING:
    from components.snapshotter.expiration import Report
    from components.snapshotter.rollback import Plan

_POLL_S = 0.1


@click.group("snapshot", short_help="Snapshots of tables: make, list, expire, clean up, roll back.")
def commands() -> None:
    """Named states of a table, and what becomes of them."""


@commands.command("create")
@click.argument("name", metavar="TABLE")
@click.option("--tag", help="Its name, in Iceberg too; one is made up if none is given.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is there.")
@click.option("--timeout", "timeout_s", type=float, default=600.0, show_default=True, help="How long, in seconds.")
@settings_options
@json_option
def create_command(
    name: str, tag: str | None, wait: bool, timeout_s: float, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Ask for a snapshot of TABLE, which contains everything that was inserted before, and wait for it.

    The daemon's snapshotter makes it. Exits with 1 if it could not, with 3 if no daemon runs: the request stays, and is
    met when one does.
    """

    async def ask(desk: Desk) -> tuple[LakeTable, TableSnapshot, str | None]:
        table = await find_table(desk.store, name)
        row = await desk.store.request_snapshot(table.id, tag=tag, reason="astha snapshot create")
        nobody = await desk.nobody() if wait else None
        if wait and nobody is None:
            row = await _answered(desk, row, timeout_s, quiet=as_json)
        return table, row, nobody

    table, row, nobody = run_at_desk(reload(), ask)
    shown = row_of(table, row)
    if as_json:
        print_json(shown)
    if row.status == "failed":
        raise Failure(f"no snapshot of {shown['table']}: {row.reason}", Exit.PROBLEM)
    if row.status == "requested" and wait:
        why = nobody or f"no answer within {timeout_s:.0f} s"
        raise Failure(f"{why}: snapshot {row.id} of {shown['table']} stays requested", Exit.UNAVAILABLE)
    if not as_json:
        state = f"snapshot {row.snapshot_id}" if row.status == "created" else f"requested ({row.id})"
        click.echo(f"{shown['table']}: {row.tag or 'a snapshot'}: {state}")


async def _answered(desk: Desk, row: TableSnapshot, timeout_s: float, *, quiet: bool) -> TableSnapshot:
    if not quiet:
        click.echo("asked for it; waiting for Iceberg to contain what was inserted before", err=True)
    end = desk.clock.monotonic() + timeout_s
    while desk.clock.monotonic() < end:
        found = await desk.store.list_snapshots(row.table_id, after=row.id - 1, limit=1)
        if not found or found[0].id != row.id:
            raise Failure("the table was dropped", Exit.PROBLEM)
        if found[0].status != "requested":
            return found[0]
        await desk.clock.sleep(_POLL_S)
    return row


@commands.command("list")
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--all", "everything", is_flag=True, help="Failed and expired ones, too.")
@settings_options
@json_option
def list_command(name: str | None, everything: bool, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show the snapshots of TABLE, or of all tables, as the registry knows them."""

    async def look(desk: Desk) -> list[dict[str, Any]]:
        found = []
        for table in await desk.tables_of(name):
            rows = await desk.rows(table)
            found += [row_of(table, row) for row in rows if everything or row.status in ("requested", "created")]
        return found

    rows = run_at_desk(reload(), look)
    if as_json:
        print_json(rows)
    else:
        print_rows(rows)


@commands.command("expire")
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--tag", "tags", multiple=True, help="This one, whatever the table's settings say. Several can be given.")
@click.option("--dry-run", is_flag=True, help="Only say what would expire, and why the others would not.")
@settings_options
@json_option
def expire_command(
    name: str | None, tags: tuple[str, ...], dry_run: bool, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Let snapshots of TABLE, or of all tables, expire as `snapshot.keep` and `snapshot.keep-for` say.

    The name is free at once; what it named stays readable for the table's `snapshot.grace`. Tags that others have set
    are never touched.
    """
    if tags and name is None:
        raise Failure("--tag: name the TABLE whose snapshot is meant", Exit.USAGE)

    async def expire(desk: Desk) -> list[Report]:
        from components.snapshotter.policy import PolicyProblem

        reports = []
        if not dry_run and not tags:
            await desk.require_clock()
        for table in await desk.tables_of(name):
            await _require_tags(desk, table, tags)
            try:
                reports.append(await (await desk.lifecycle()).expire(table, tags=tags, dry_run=dry_run))
            except PolicyProblem as problem:
                reports.append(desk.trouble(table, str(problem)))
        return reports

    _tell(run_at_desk(reload(), expire), "expires" if dry_run else "expired", dry_run, as_json)


async def _require_tags(desk: Desk, table: LakeTable, tags: Sequence[str]) -> None:
    known = {row.tag for row in await desk.rows(table) if row.status == "created"}
    for tag in tags:
        if tag not in known:
            raise Failure(f"{table.database}.{table.name} has no snapshot with the tag {tag!r}", Exit.PROBLEM)


@commands.command("clean")
@click.argument("name", metavar="[TABLE]", required=False)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted, and why the rest would not.")
@click.option(
    "--uploads-after",
    "stale_s",
    type=float,
    help="Seconds after which an upload that nobody renews is given up: lake.intents_stale_after_s, or more. Only "
    "without TABLE.",
)
@settings_options
@json_option
def clean_command(
    name: str | None, dry_run: bool, stale_s: float | None, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Delete files that TABLE, or any table, has lost and that no Iceberg snapshot needs, once their grace is over;
    and, without TABLE, what uploads have left.

    Exits with 1 if a table could not be cleaned.
    """
    from components.lib.lake.registration.upload_intents import CleanupResult

    settings = reload()
    least_s = settings.lake.intents_stale_after_s
    if stale_s is not None and stale_s < least_s:
        raise Failure(
            f"--uploads-after {stale_s:g}: lake.intents_stale_after_s is {least_s:g}, and uploads under way may be as "
            "old: give as much, or more",
            Exit.USAGE,
        )

    async def clean(desk: Desk) -> tuple[list[Report], CleanupResult]:
        if not dry_run:
            await desk.require_clock()
        if name is not None:
            table = await find_table(desk.store, name)
            return await (await desk.lifecycle()).clean(table.id, dry_run=dry_run), CleanupResult([], [], [])
        reports = await (await desk.lifecycle()).clean(dry_run=dry_run)
        return reports, await (await desk.lifecycle()).clean_intents(stale_s or least_s, dry_run=dry_run)

    reports, uploads = run_at_desk(settings, clean)
    if not as_json:
        verb = "would be deleted" if dry_run else "deleted"
        for path in uploads.deleted:
            click.echo(f"{verb}  {path}  left by an upload")
        for path, reason in uploads.refused.items():
            click.echo(f"stays  {path}  {reason}", err=True)
        for path in uploads.failed:
            click.echo(f"stays  {path}  can't be deleted now", err=True)
    _tell(reports, "would be deleted" if dry_run else "deleted", dry_run, as_json, uploads)


@commands.command("rollback")
@click.argument("name", metavar="TABLE")
@click.argument("snapshot", metavar="TAG|SNAPSHOT_ID")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@settings_options
@json_option
def rollback_command(
    name: str, snapshot: str, yes: bool, dry_run: bool, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Put TABLE's files back to those of a snapshot: in the registry at once, in one transaction; Iceberg follows.

    The schema stays the newest. What was inserted since leaves the table, and can be had back by another rollback until
    it is cleaned; what is inserted meanwhile stays. Refused if a file of the snapshot is gone.
    """
    settings = reload()

    async def plan(desk: Desk) -> Plan:
        return await (await desk.rollback()).plan(await find_table(desk.store, name), snapshot)

    async def perform(desk: Desk) -> Plan:
        return await (await desk.rollback()).roll_back(await find_table(desk.store, name), snapshot)

    found = run_at_desk(settings, plan)
    changes = bool(found.removed or found.restored)
    if changes and not dry_run:
        if not yes:
            _confirm(name, found)
        found = run_at_desk(settings, perform)
    if as_json:
        counts = {"removed": len(found.removed), "restored": len(found.restored), "rows": found.rows}
        print_json({"table": name, "snapshot_id": found.snapshot_id, "changed": changes and not dry_run, **counts})
    elif not changes:
        click.echo(f"{name} has the files of snapshot {found.snapshot_id} already")
    else:
        click.echo(f"{name} {'would go' if dry_run else 'is'} back at snapshot {found.snapshot_id}: {_counted(found)}")


def _confirm(name: str, plan: Plan) -> None:
    question = f"{name} goes back to snapshot {plan.snapshot_id}: {_counted(plan)}"
    if not sys.stdin.isatty():
        raise Failure(f"{question}. Repeat with --yes if that is meant", Exit.USAGE)
    if not click.confirm(f"{question}. Go on?", err=True):
        raise Failure("nothing was changed", Exit.PROBLEM)


def _counted(plan: Plan) -> str:
    return f"{len(plan.removed):,} files leave it, {len(plan.restored):,} come back, {plan.rows:+,} rows"


def _tell(reports: Sequence[Report], verb: str, dry_run: bool, as_json: bool, uploads: object = None) -> None:
    if as_json:
        told: dict[str, object] = {"dry_run": dry_run, "tables": [msgspec.to_builtins(report) for report in reports]}
        if uploads is not None:
            told["uploads"] = uploads
        print_json(told)
    else:
        print_reports(reports, verb, explain=dry_run)
    if any(report.problem for report in reports):
        raise click.exceptions.Exit(Exit.PROBLEM)
