"""`astha verify`. PyIceberg takes a second to load: it is imported when it is used, not by `astha --help`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

import click
import msgspec

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json, table_progress
from astha.settings import Settings
from components.commands.verify.report import Difference, Report, TableReport
from components.lib.lake.lake_session import open_lake
from components.lib.lake.table_lookup import find_table
from registry.contract import MetadataStore
from registry.errors import NotFound

if TYPE_CHECKING:
    from components.commands.verify.storage_check import Progress
    from components.commands.verify.verification import Options


@click.command("verify", short_help="Whether registry, Iceberg and storage say the same.")
@click.argument("names", nargs=-1, metavar="[TABLE]...")
@click.option("--files", is_flag=True, help="Also whether each data file is in storage, and as long as registered.")
@click.option("--checksums", is_flag=True, help="Also whether its content is the registered one: reads every file.")
@click.option("--repair-statistics", is_flag=True, help="Count again where the registry's statistics are wrong.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the updater to come past what differs, and for one table's storage to answer.",
)
@click.option(
    "--parallel", type=click.IntRange(1, 256), default=8, show_default=True, help="Data files looked at at a time."
)
@json_option
@settings_options
def verify_command(
    *,
    names: tuple[str, ...],
    files: bool,
    checksums: bool,
    repair_statistics: bool,
    timeout_s: float,
    parallel: int,
    as_json: bool,
    reload: Callable[[], Settings],
) -> None:
    """Compare the registry's files with those in Iceberg's manifests, and its statistics with its files.

    All tables, or those named (DATABASE.NAME, or NAME for one in the database `default`). The daemon and writers may
    go on: what is only on its way to Iceberg is waited for. Says equal, or every difference with its likely cause and
    what to do.

    A table whose storage does not answer within --timeout is reported as different, with that reason; the others are
    verified all the same.

    Exits with 0 if all is equal, with 1 if something differs or a table could not be read, with 3 if the registry or
    the catalog could not be asked.
    """
    from components.commands.verify.verification import Options

    settings = reload()
    options = Options(
        files=files,
        checksums=checksums,
        repair_statistics=repair_statistics,
        parallel=parallel,
        timeout_s=timeout_s,
        lease=settings.lease.name,
    )
    started = monotonic()
    with table_progress(quiet=as_json, unit="files") as progress:
        report = _verify(settings, names, options, progress)
    seconds = round(monotonic() - started, 3)
    if as_json:
        tables = [{"equal": table.equal, **msgspec.to_builtins(table)} for table in report.tables]
        print_json({"equal": report.equal, "tables": tables, "elsewhere": report.elsewhere, "seconds": seconds})
    else:
        _print(report, seconds)
    if not report.equal:
        raise click.exceptions.Exit(Exit.PROBLEM)


def _verify(settings: Settings, names: tuple[str, ...], options: Options, progress: Progress) -> Report:
    from components.lib.lake.iceberg import CatalogUnavailable
    from components.lib.lake.storage.objects import StorageError

    try:
        return asyncio.run(_run(settings, names, options, progress))
    except (CatalogUnavailable, StorageError) as error:
        raise Failure(settings.concealment()(f"could not be verified: {error}"), Exit.UNAVAILABLE) from error


async def _run(settings: Settings, names: tuple[str, ...], options: Options, progress: Progress) -> Report:
    from components.commands.verify.verification import Verification

    async with open_lake(settings) as lake:
        wanted = [await _table_id(lake.store, name) for name in names] or None
        tables = await lake.iceberg_tables(read_only=True)
        verification = Verification(lake.store, tables, lake.objects, lake.clock, options, progress)
        return await verification.run(wanted)


async def _table_id(store: MetadataStore, name: str) -> int:
    """Exit code 1 is for differences alone."""
    try:
        return (await find_table(store, name)).id
    except NotFound as error:
        raise Failure(str(error), Exit.USAGE) from error


def _print(report: Report, seconds: float) -> None:
    width = max((len(table.table) for table in report.tables), default=0)
    for table in report.tables:
        click.echo(f"{table.table:<{width}}  {_state(table)}  {_said(table)}".rstrip())
        for difference in table.differences:
            _print_difference(difference)
    for difference in report.elsewhere:
        click.echo("elsewhere")
        _print_difference(difference)
    different = sum(not table.equal for table in report.tables)
    if report.equal:
        click.echo(f"equal: {len(report.tables):,} tables ({seconds:.1f} s)")
    else:
        count = sum(len(difference.items) for difference in _all(report))
        click.echo(
            f"different: {different:,} of {len(report.tables):,} tables, {count:,} differences ({seconds:.1f} s)"
        )


def _all(report: Report) -> list[Difference]:
    return [difference for table in report.tables for difference in table.differences] + report.elsewhere


def _state(table: TableReport) -> str:
    return click.style("equal    ", fg="green") if table.equal else click.style("different", fg="red")


def _said(table: TableReport) -> str:
    said = [f"{table.files:,} files, {table.rows:,} rows, {table.size_bytes:,} bytes"]
    if table.snapshot is not None:
        at = "" if table.position is None else f" at position {table.position}"
        said.append(f"snapshot {table.snapshot}{at}")
    elif table.digest is None:
        said.append(f"{table.format}, not in Iceberg" if table.equal else table.format)
    if table.objects_checked:
        read = f", {table.bytes_checked:,} bytes read" if table.bytes_checked else ""
        without = f", {table.without_checksum:,} without checksum" if table.without_checksum else ""
        said.append(f"{table.objects_checked:,} objects looked at{read}{without}")
    if table.statistics_repaired:
        said.append("statistics counted again")
    return "; ".join(said)


def _print_difference(difference: Difference) -> None:
    click.echo(f"  {difference.kind}")
    for item in difference.items:
        click.echo(f"    {item}")
    click.echo(f"    cause:  {difference.cause.why}")
    if difference.cause.repair is not None:
        click.echo(f"    repair: {difference.cause.repair}")
