"""`astha insert`: inserts files of rows into a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from astha.cli.options import json_option, settings_options
from astha.cli.output import counted, print_json

if TYPE_CHECKING:
    from astha.settings import Settings
    from components.commands.insert_run import InsertRun
    from components.lib.storage_manager.readers import Format

FORMATS = ("parquet", "csv", "json")
"""Those of `components.lib.storage_manager.readers`, which imports Arrow. A test compares them."""


@click.command("insert", short_help="Insert files of rows into a table.")
@click.argument("table", metavar="TABLE")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option("--format", "kind", type=click.Choice(FORMATS), help="Format of all FILEs. Default: by their extensions.")
@click.option(
    "--sync/--async",
    "sync",
    default=False,
    show_default=True,
    help="With --sync each FILE is registered before the next one is read. Both wait for all FILEs at the end.",
)
@click.option(
    "--id",
    "insert_id",
    metavar="KEY",
    help="Insert each FILE only if it was not inserted with this KEY and name before. Makes a retry safe.",
)
@click.option(
    "--on-error",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="Refuse a FILE with rows that don't fit, or insert the others; --rejects gets those.",
)
@click.option(
    "--rejects",
    "rejects_path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --on-error skip: append the rows that don't fit to this file, with the reason, as JSON lines.",
)
@click.option("--fill-missing", is_flag=True, help="Fill missing optional columns with nulls.")
@json_option
@settings_options
def insert_command(
    *,
    table: str,
    files: tuple[str, ...],
    kind: Format | None,
    sync: bool,
    insert_id: str | None,
    on_error: str,
    rejects_path: Path | None,
    fill_missing: bool,
    as_json: bool,
    reload: Callable[[], Settings],
) -> None:
    """Insert the rows of FILEs into TABLE, written DATABASE.TABLE.

    FILEs are Parquet, CSV with a header, or JSON lines; - is standard input. Each FILE is one insert: afterwards all of
    its rows are in the table, or none. CSV and JSON are read by the table's types; an empty CSV field is null.

    With --id the command can be repeated after any failure: a FILE that was inserted with the same KEY is not read
    again, whatever it contains now.

    \b
    Examples:
      astha insert shop.orders orders.parquet more.csv
      astha insert shop.orders - --format json < orders.jsonl
      astha insert shop.orders orders.parquet --id 2026-11-18
      astha insert shop.orders orders.csv --on-error skip --rejects rejects.jsonl
    """
    if insert_id is not None and len(set(files)) < len(files):
        raise click.UsageError("a FILE appears twice: with --id its second insert would be taken for a repetition")
    if on_error == "skip" and rejects_path is None:
        raise click.UsageError("--on-error skip needs --rejects FILE, for the rows that don't fit")
    if on_error != "skip" and rejects_path is not None:
        raise click.UsageError("--rejects is for --on-error skip: give both, or neither")
    # Imported here: help and wrong usage do not wait for Arrow.
    from components.commands.insert_run import InsertRun, RejectsFile, insert_all
    from components.lib.storage_manager.settings import StorageSettings

    run = InsertRun(table, files, kind, StorageSettings(sync=sync, fill_missing=fill_missing), insert_id)
    for name in files:
        run.format_of(name)
    started = monotonic()
    if rejects_path is not None:
        run.rejects = RejectsFile(rejects_path)
    try:
        asyncio.run(insert_all(run, reload(), quiet=as_json))
    finally:
        if run.rejects is not None:
            run.rejects.close()
    rejected = 0 if run.rejects is None else run.rejects.count
    seconds = round(monotonic() - started, 3)
    rows = sum(inserted.rows for _, inserted in run.done)
    stored = sum(len(inserted.files) for _, inserted in run.done)
    if as_json:
        print_json(
            {
                "table": table,
                "rows": rows,
                "files": stored,
                "rejected": rejected,
                "seconds": seconds,
                "inserts": _summary(run),
            }
        )
    else:
        for name, inserted in run.done:
            if inserted.repeated is not None:
                click.echo(
                    f"{name}: inserted before, {counted(inserted.repeated.row_count, 'row')}; nothing was changed"
                )
        if rejected:
            click.echo(f"{counted(rejected, 'row')} did not fit: see {rejects_path}", err=True)
        click.echo(f"{table}: {counted(rows, 'row')} in {counted(stored, 'file')} ({seconds:.1f} s)")


def _summary(run: InsertRun) -> list[dict[str, Any]]:
    return [
        {
            "file": name,
            "rows": inserted.rows,
            "files": [file.file_path for file in inserted.files],
            "bytes": inserted.size_bytes,
            "schema_version": inserted.schema_version,
            "repeated": inserted.repeated is not None,
        }
        for name, inserted in run.done
    ]
