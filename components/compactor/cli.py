"""`astha compaction`: what is compacted and why, and compaction by hand.

PySpark and Arrow take seconds to load: they are imported by who uses them, not by `astha --help`.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.settings import Settings
from components.compactor.desk import Desk, run_at_desk
from components.compactor.tidings import print_decisions, print_savings, row_of, saved
from registry.models import Compaction, CompactionStatus, Savings

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
