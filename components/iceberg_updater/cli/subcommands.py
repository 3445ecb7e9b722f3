"""The subcommands of `astha iceberg`. PyIceberg takes a second to load, so each command imports it when it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import click
import msgspec

from astha.cli.control import client_of
from astha.cli.exit_codes import Exit
from astha.cli.options import json_option, server_options, settings_options
from astha.cli.output import print_json, print_pairs, time_text
from astha.cli.progress import progress
from astha.cli.table import print_rows
from astha.client import NoDaemon, Refused
from astha.settings import Settings
from components.lib.lake.lake_session import LakeSession, run_with_lake
from components.lib.lake.table_lookup import find_table
from registry.contract import MetadataStore
from registry.models import LakeTable

if TYPE_CHECKING:
    from components.iceberg_updater.external_commits import Resolution
    from components.iceberg_updater.status import IcebergTableStatus
    from components.lib.lake.iceberg import IcebergTables
    from components.lib.lake.updater_state import FailingTable

T = TypeVar("T")
Work: TypeAlias = "Callable[[MetadataStore, IcebergTables], Awaitable[T]]"
Resolve: TypeAlias = "Callable[[MetadataStore, IcebergTables, LakeTable], Awaitable[Resolution]]"

COMPONENT = "iceberg_updater"


@click.command("status", short_help="Show the state of each Iceberg table.")
@click.argument("name", metavar="[TABLE]", required=False)
@settings_options
@json_option
def status_command(name: str | None, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show each table's last commit, how far it is behind the registry, and why it is stopped.

    A table that the updater could not update is shown with the reason, the number of attempts and the next one.

    Exits with 1 if a table is stopped or is being retried.

    \b
    Example:
      astha iceberg status sales.orders
    """
    from components.iceberg_updater.status import read_all_statuses

    async def read(store: MetadataStore, tables: IcebergTables) -> list[IcebergTableStatus]:
        return await read_all_statuses(store, tables, None if name is None else await find_table(store, name))

    with progress("reading Iceberg's metadata", quiet=as_json):
        statuses = _with_lake(reload(), read, writes=False)
    if as_json:
        print_json([{**msgspec.to_builtins(status), "state": status.state} for status in statuses])
    elif name is not None and statuses:
        _print_one(statuses[0])
    else:
        _print_all(statuses)
    if any(status.stopped or status.trouble for status in statuses):
        raise click.exceptions.Exit(Exit.PROBLEM)


@click.command("adopt", short_help="Adopt another engine's commits.")
@click.argument("name", metavar="TABLE")
@settings_options
@server_options
@json_option
def adopt_command(
    name: str, reload: Callable[[], Settings], server_url: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Adopt another engine's commits to TABLE: register the files it added, remove those it removed.

    The registry changes in one transaction. Refused if the engine wrote delete files or changed the schema.

    \b
    Example:
      astha iceberg adopt sales.orders
    """
    from components.iceberg_updater.external_commits import adopt

    _resolve(adopt, "registered", name, reload(), server_url, token_file, as_json)


@click.command("revert", short_help="Revert another engine's commits.")
@click.argument("name", metavar="TABLE")
@settings_options
@server_options
@json_option
def revert_command(
    name: str, reload: Callable[[], Settings], server_url: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Revert another engine's commits to TABLE: commit a snapshot with the registry's files and schema.

    The other engine's snapshots stay until they expire.

    \b
    Example:
      astha iceberg revert sales.orders
    """
    from components.iceberg_updater.external_commits import revert

    _resolve(revert, "restored", name, reload(), server_url, token_file, as_json)


def _resolve(
    resolve: Resolve,
    verb: str,
    name: str,
    settings: Settings,
    server_url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    async def work(store: MetadataStore, tables: IcebergTables) -> Resolution:
        return await resolve(store, tables, await find_table(store, name))

    with progress(f"resolving {name}", quiet=as_json):
        done = _with_lake(settings, work, writes=True)
    postponed = _request_refresh(settings, server_url, token_file)
    if as_json:
        print_json({**msgspec.to_builtins(done), "refreshing": postponed is None})
        return
    click.echo(f"{done.table}: {done.added:,} files {verb}, {done.removed:,} removed")
    click.echo("the daemon refreshes the table now" if postponed is None else postponed)


def _request_refresh(settings: Settings, server_url: str | None, token_file: Path | None) -> str | None:
    """Returns None if the daemon refreshes now, else when it will."""
    try:
        client_of(settings, server_url, token_file).post(f"/components/{COMPONENT}/refresh")
    except NoDaemon:
        return "no daemon answers: the table is refreshed at its next change"
    except Refused as error:
        return f"the daemon does not refresh now ({error}): the table is refreshed at its next change"
    return None


def _with_lake(settings: Settings, work: Work[T], *, writes: bool) -> T:
    async def run(lake: LakeSession) -> T:
        return await work(lake.store, await lake.iceberg_tables(read_only=not writes))

    return run_with_lake(settings, run)


def _print_all(statuses: list[IcebergTableStatus]) -> None:
    if not statuses:
        click.echo("no Iceberg tables")
        return
    header = ("table", "state", "snapshot", "position", "files", "behind", "committed")
    rows = [
        [
            status.table,
            status.state,
            str(status.snapshot or ""),
            str(status.position or ""),
            "" if status.files is None else f"{status.files:,}",
            "" if status.behind is None else f"{status.behind:,}",
            _time(status.committed_at),
        ]
        for status in statuses
    ]
    print_rows(header, rows, right=("snapshot", "position", "files", "behind"), optional=("position",))
    for status in statuses:
        if status.stopped:
            click.echo(f"\n{status.table} is stopped: {status.stopped}")
        elif status.trouble is not None:
            click.echo(f"\n{status.table} is behind: {status.trouble.reason}")
            click.echo(f"  {_attempts(status.trouble)}")


def _print_one(status: IcebergTableStatus) -> None:
    pairs = {
        "table": status.table,
        "state": status.state,
        "stopped": status.stopped,
        "trouble": None if status.trouble is None else status.trouble.reason,
        "attempts": None if status.trouble is None else _attempts(status.trouble),
        "snapshot": status.snapshot,
        "position": status.position,
        "digest": status.digest,
        "files": status.files,
        "registered files": status.registered_files,
        "schema version": f"{status.schema_version} of {status.registered_version}",
        "committed": _time(status.committed_at) or None,
        "metadata": status.metadata,
    }
    print_pairs({name: str(value) for name, value in pairs.items() if value is not None})


def _attempts(trouble: FailingTable) -> str:
    if not trouble.since:
        return "found just now"
    return f"{trouble.attempts:,} since {_time(trouble.since)}, next {_time(trouble.next_try)}"


def _time(ms: int | None) -> str:
    return "" if ms is None else time_text(ms)
