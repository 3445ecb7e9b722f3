"""`astha tables drop`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from astha.cli.exits import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.cli.store import with_store
from astha.settings import Settings
from components.lake.tables import begin_drop, find_table, finish_drop, full_name
from registry.contract import MetadataStore
from registry.models import LakeTable


@click.command("drop", short_help="A table leaves the lake.")
@click.argument("table", metavar="[DATABASE.]NAME")
@click.option("--purge", is_flag=True, help="Its files are deleted too, once no snapshot needs them.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@settings_options
@json_option
def drop_command(reload: Callable[[], Settings], table: str, purge: bool, yes: bool, as_json: bool) -> None:
    """Drop a table: its columns, files and statistics leave the registry, and Iceberg's catalog follows.

    If the command is interrupted, the daemon finishes what was begun; so does repeating it.

    \b
    Examples:
      astha tables drop sales.orders
      astha tables drop sales.orders --purge --yes
    """
    settings = reload()
    found = with_store(settings, lambda store: find_table(store, table))
    if not yes:
        _ask(found, purge)

    async def drop(store: MetadataStore) -> bool:
        purged = await begin_drop(store, found, purge=purge)
        await finish_drop(store, found)
        return purged

    purged = with_store(settings, drop)
    if as_json:
        print_json({"dropped": full_name(found), "purged": purged, "files": found.file_count})
    else:
        after = "its files will be deleted" if purged else f"its files stay at {found.location}"
        click.echo(f"dropped {full_name(found)}; {after}")


def _ask(table: LakeTable, purge: bool) -> None:
    files = "and deletes its files" if purge else "and leaves its files where they are"
    question = f"this drops {full_name(table)} with {table.row_count:,} rows in {table.file_count:,} files, {files}"
    if not sys.stdin.isatty():
        raise Failure(f"{question}: repeat with --yes if that is meant", Exit.USAGE)
    if not click.confirm(f"{question}. Go on?", err=True):
        raise Failure("nothing was changed", Exit.PROBLEM)
