"""`astha verify`. Libraries that take long to load are imported when the command runs, not for its help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import counted, print_json
from astha.cli.progress import progress
from registry.errors import NotFound

if TYPE_CHECKING:
    from astha.settings import Settings
    from components.commands.verify.report import Difference, TableVerification, VerificationReport
    from components.commands.verify.storage_check import ProgressCallback
    from components.commands.verify.verification import VerifyOptions
    from registry.contract import MetadataStore


@click.command("verify", short_help="Compare registry, Iceberg and storage.")
@click.argument("names", nargs=-1, metavar="[TABLE]...")
@click.option("--files", is_flag=True, help="Also check that each data file exists with its registered size.")
@click.option("--checksums", is_flag=True, help="Also check the content of each data file: reads every file.")
@click.option("--repair-statistics", is_flag=True, help="Recount the registry's statistics where they are wrong.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the Iceberg updater to catch up, and for one table's storage to answer.",
)
@click.option(
    "--parallel", type=click.IntRange(1, 256), default=8, show_default=True, help="Data files to check at a time."
)
@click.option(
    "--metrics",
    "metrics_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the result as metrics, for node_exporter's textfile collector.",
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
    metrics_file: Path | None,
    as_json: bool,
    reload: Callable[[], Settings],
) -> None:
    """Compare the registry's files with Iceberg's manifests, and its statistics with its files.

    Verifies all tables, or those named (DATABASE.NAME, or NAME for one in the database `default`), and shows each
    difference with its likely cause and remedy. The daemon and writers may keep running: changes on their way to
    Iceberg are waited for.

    A table whose storage does not answer within --timeout is reported as different; the others are verified.

    Exits with 0 if all is equal, with 1 if something differs or a table could not be read, with 3 if the registry or
    the catalog does not answer.

    \b
    Examples:
      astha verify
      astha verify sales.orders --files
      astha verify --metrics /var/lib/node_exporter/astha_verify.prom
    """
    import msgspec

    from components.commands.verify.verification import VerifyOptions

    settings = reload()
    options = VerifyOptions(
        files=files,
        checksums=checksums,
        repair_statistics=repair_statistics,
        parallel=parallel,
        timeout_s=timeout_s,
    )
    started = monotonic()
    with progress("verifying", quiet=as_json, unit="files") as show:
        report = _verify(settings, names, options, show)
    seconds = round(monotonic() - started, 3)
    if as_json:
        tables = [{"equal": table.equal, **msgspec.to_builtins(table)} for table in report.tables]
        print_json({"equal": report.equal, "tables": tables, "elsewhere": report.elsewhere, "seconds": seconds})
    else:
        _print(report, seconds)
    if metrics_file is not None:
        _write_metrics(metrics_file, report, seconds)
    if not report.equal:
        raise click.exceptions.Exit(Exit.PROBLEM)


def _verify(
    settings: Settings, names: tuple[str, ...], options: VerifyOptions, show: ProgressCallback
) -> VerificationReport:
    from components.lib.lake.iceberg import CatalogUnavailable
    from components.lib.lake.storage.objects import StorageError

    try:
        return asyncio.run(_run(settings, names, options, show))
    except (CatalogUnavailable, StorageError) as error:
        raise Failure(settings.redactor()(f"could not be verified: {error}"), Exit.UNAVAILABLE) from error


async def _run(
    settings: Settings, names: tuple[str, ...], options: VerifyOptions, show: ProgressCallback
) -> VerificationReport:
    from components.commands.verify.verification import Verification
    from components.lib.lake.lake_session import open_lake

    async with open_lake(settings) as lake:
        wanted = [await _table_id(lake.store, name) for name in names] or None
        tables = await lake.iceberg_tables(read_only=True)
        verification = Verification(lake.store, tables, lake.objects, lake.clock, options, show)
        return await verification.run(wanted)


def _write_metrics(path: Path, report: VerificationReport, seconds: float) -> None:
    from components.commands.verify.metrics_file import write_metrics

    try:
        write_metrics(path, report, time(), seconds)
    except OSError as error:
        raise Failure(f"the metrics can't be written to {path}: {error}", Exit.UNAVAILABLE) from error


async def _table_id(store: MetadataStore, name: str) -> int:
    """Exit code 1 is for differences alone."""
    from components.lib.lake.table_lookup import find_table

    try:
        return (await find_table(store, name)).id
    except NotFound as error:
        raise Failure(str(error), Exit.USAGE) from error


def _print(report: VerificationReport, seconds: float) -> None:
    width = max((len(table.table) for table in report.tables), default=0)
    for table in report.tables:
        click.echo(f"{table.table:<{width}}  {_state(table)}  {_summary(table)}".rstrip())
        for difference in table.differences:
            _print_difference(difference)
    for difference in report.elsewhere:
        click.echo("elsewhere")
        _print_difference(difference)
    different = sum(not table.equal for table in report.tables)
    if report.equal:
        click.echo(f"equal: {counted(len(report.tables), 'table')} ({seconds:.1f} s)")
    else:
        count = sum(len(difference.items) for difference in _all(report))
        click.echo(
            f"different: {different:,} of {counted(len(report.tables), 'table')}, "
            f"{counted(count, 'difference')} ({seconds:.1f} s)"
        )


def _all(report: VerificationReport) -> list[Difference]:
    return [difference for table in report.tables for difference in table.differences] + report.elsewhere


def _state(table: TableVerification) -> str:
    return click.style("equal    ", fg="green") if table.equal else click.style("different", fg="red")


def _summary(table: TableVerification) -> str:
    parts = [f"{counted(table.files, 'file')}, {counted(table.rows, 'row')}, {table.size_bytes:,} bytes"]
    if table.delete_files:
        left = table.rows - table.rows_deleted
        parts.append(f"{counted(table.delete_files, 'delete file')}, {left:,} rows without those deleted by position")
    if table.snapshot is not None:
        at = "" if table.position is None else f" at position {table.position}"
        parts.append(f"snapshot {table.snapshot}{at}")
    elif table.digest is None:
        parts.append(f"{table.format}, not in Iceberg" if table.equal else table.format)
    if table.objects_checked:
        read = f", {table.bytes_checked:,} bytes read" if table.bytes_checked else ""
        without = f", {table.without_checksum:,} without checksum" if table.without_checksum else ""
        parts.append(f"{counted(table.objects_checked, 'object')} checked{read}{without}")
    if table.statistics_repaired:
        parts.append("statistics recounted")
    return "; ".join(parts)


def _print_difference(difference: Difference) -> None:
    click.echo(f"  {difference.kind}")
    for item in difference.items:
        click.echo(f"    {item}")
    click.echo(f"    cause:  {difference.cause.reason}")
    if difference.cause.repair is not None:
        click.echo(f"    repair: {difference.cause.repair}")
