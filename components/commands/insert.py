"""`astha insert`: inserts files of rows into a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json

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
@click.option("--fill-missing", is_flag=True, help="Fill missing optional columns with nulls.")
@json_option
@settings_options
def insert_command(
    *,
    table: str,
    files: tuple[str, ...],
    kind: Format | None,
    sync: bool,
    fill_missing: bool,
    as_json: bool,
    reload: Callable[[], Settings],
) -> None:
    """Insert the rows of FILEs into TABLE, written DATABASE.TABLE.

    FILEs are Parquet, CSV with a header, or JSON lines; - is standard input. Each FILE is one insert: afterwards all of
    its rows are in the table, or none. CSV and JSON are read by the table's types; an empty CSV field is null.

    \b
    Examples:
      astha insert sales.orders orders.parquet more.csv
      astha insert sales.orders - --format json < orders.jsonl
    """
    # Imported here: help does not wait for Arrow.
    from components.commands.insert_run import InsertRun, insert_all
    from components.lib.storage_manager.settings import StorageSettings

    run = InsertRun(table, files, kind, StorageSettings(sync=sync, fill_missing=fill_missing))
    for name in files:
        run.format_of(name)
    started = monotonic()
    asyncio.run(insert_all(run, reload(), quiet=as_json))
    seconds = round(monotonic() - started, 3)
    rows = sum(inserted.rows for _, inserted in run.done)
    stored = sum(len(inserted.files) for _, inserted in run.done)
    if as_json:
        print_json({"table": table, "rows": rows, "files": stored, "seconds": seconds, "inserts": _summary(run)})
    else:
        click.echo(f"{table}: {rows:,} rows in {stored:,} files ({seconds:.1f} s)")


def _summary(run: InsertRun) -> list[dict[str, Any]]:
    return [
        {
            "file": name,
            "rows": inserted.rows,
            "files": [file.file_path for file in inserted.files],
            "bytes": inserted.size_bytes,
            "schema_version": inserted.schema_version,
        }
        for name, inserted in run.done
    ]
