"""`astha iceberg`: how tables stand in Iceberg, and what to do about another engine's commits.

PyIceberg takes a second to load: it is imported by who uses it, not by `astha --help`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table

from astha.cli.control import client_of
from astha.cli.exit_codes import Exit
from astha.cli.options import json_option, server_options, settings_options
from astha.cli.output import print_json, print_pairs
from astha.client import NoDaemon, Refused
from astha.settings import Settings
from components.lib.lake.lake_session import LakeSession, run_with_lake
from components.lib.lake.table_lookup import find_table
from registry.contract import MetadataStore
from registry.models import LakeTable

if TYPE_CHECKING:
    from components.iceberg_updater.external_commits import Outcome
    from components.iceberg_updater.status import TableReport
    from components.lib.lake.iceberg import IcebergTables
    from components.lib.lake.updater_state import FailingTable

T = TypeVar("T")
Work: TypeAlias = "Callable[[MetadataStore, IcebergTables], Awaitable[T]]"
Mend: TypeAlias = "Callable[[MetadataStore, IcebergTables, LakeTable], Awaitable[Outcome]]"

COMPONENT = "iceberg_updater"


@click.group("iceberg", short_help="Iceberg tables: how they stand, and other engines' commits.")
def commands() -> None:
    """Iceberg tables as the updater keeps them, and what to do when another engine has committed to one."""


@commands.command("status")
@click.argument("name", metavar="[TABLE]", required=False)
@settings_options
@json_option
def status_command(name: str | None, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show each table's last commit, how far it is behind the registry, and why if it is stopped.

    A table that the updater could not bring up to date is shown with the reason, the attempts and the next one.

    Exits with 1 if a table is stopped, or is being tried again.
    """
    from components.iceberg_updater.status import report_all

    async def look(store: MetadataStore, tables: IcebergTables) -> list[TableReport]:
        return await report_all(store, tables, None if name is None else await find_table(store, name))

    reports = _with_lake(reload(), look, writes=False)
    if as_json:
        print_json([{**msgspec.to_builtins(report), "state": report.state} for report in reports])
    elif name is not None and reports:
        _print_one(reports[0])
    else:
        _print_all(reports)
    if any(report.stopped or report.trouble for report in reports):
        raise click.exceptions.Exit(Exit.PROBLEM)


@commands.command("adopt")
@click.argument("name", metavar="TABLE")
@settings_options
@server_options
@json_option
def adopt_command(
    name: str, reload: Callable[[], Settings], server_url: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Take what another engine has committed over into the registry: its files are registered, those that it has
    removed are removed, in one transaction. Refused if it has written delete files or changed the schema.
    """
    from components.iceberg_updater.external_commits import adopt

    _mend(adopt, "registered", name, reload(), server_url, token_file, as_json)


@commands.command("revert")
@click.argument("name", metavar="TABLE")
@settings_options
@server_options
@json_option
def revert_command(
    name: str, reload: Callable[[], Settings], server_url: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Undo what another engine has committed: a new snapshot with exactly the registry's files and schema. The other
    engine's snapshots stay until they expire.
    """
    from components.iceberg_updater.external_commits import revert

    _mend(revert, "brought back", name, reload(), server_url, token_file, as_json)


def _mend(
    mend: Mend, verb: str, name: str, settings: Settings, server_url: str | None, token_file: Path | None, as_json: bool
) -> None:
    async def work(store: MetadataStore, tables: IcebergTables) -> Outcome:
        return await mend(store, tables, await find_table(store, name))

    outcome = _with_lake(settings, work, writes=True)
    refreshes = _ask_for_refresh(settings, server_url, token_file)
    if as_json:
        print_json({**msgspec.to_builtins(outcome), "refreshing": refreshes is None})
        return
    click.echo(f"{outcome.table}: {outcome.added:,} files {verb}, {outcome.removed:,} removed")
    click.echo("the daemon compares the table with the registry now" if refreshes is None else refreshes)


def _ask_for_refresh(settings: Settings, server_url: str | None, token_file: Path | None) -> str | None:
    """None if the daemon does it now, else when it will."""
    try:
        client_of(settings, server_url, token_file).post(f"/components/{COMPONENT}/refresh")
    except NoDaemon:
        return "no daemon answers: the next change of the table makes one compare it with the registry"
    except Refused as error:
        return f"the daemon does not refresh now ({error}): it will at the table's next change"
    return None


def _with_lake(settings: Settings, work: Work[T], *, writes: bool) -> T:
    async def run(lake: LakeSession) -> T:
        return await work(lake.store, await lake.iceberg_tables(read_only=not writes))

    return run_with_lake(settings, run)


def _print_all(reports: list[TableReport]) -> None:
    if not reports:
        click.echo("no tables for Iceberg")
        return
    table = Table(box=None, pad_edge=False, header_style="")
    for column in ("table", "state", "snapshot", "position", "files", "behind", "committed"):
        table.add_column(column, justify="right" if column in ("files", "behind") else "left", no_wrap=True)
    for report in reports:
        table.add_row(
            report.table,
            report.state,
            str(report.snapshot or ""),
            str(report.position or ""),
            "" if report.files is None else f"{report.files:,}",
            "" if report.behind is None else f"{report.behind:,}",
            _time(report.committed_at),
        )
    Console(width=max(Console().width, 120)).print(table)
    for report in reports:
        if report.stopped:
            click.echo(f"\n{report.table} is stopped: {report.stopped}")
        elif report.trouble is not None:
            click.echo(f"\n{report.table} is behind: {report.trouble.reason}")
            click.echo(f"  {_attempts(report.trouble)}")


def _print_one(report: TableReport) -> None:
    pairs = {
        "table": report.table,
        "state": report.state,
        "stopped": report.stopped,
        "trouble": None if report.trouble is None else report.trouble.reason,
        "attempts": None if report.trouble is None else _attempts(report.trouble),
        "snapshot": report.snapshot,
        "position": report.position,
        "digest": report.digest,
        "files": report.files,
        "registered files": report.registered_files,
        "schema version": f"{report.schema_version} of {report.registered_version}",
        "committed": _time(report.committed_at) or None,
        "metadata": report.metadata,
    }
    print_pairs({name: str(value) for name, value in pairs.items() if value is not None})


def _attempts(trouble: FailingTable) -> str:
    if not trouble.since:
        return "seen just now"
    return f"{trouble.attempts:,} since {_time(trouble.since)}, next {_time(trouble.next_try)}"


def _time(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
