"""`astha tables drop`."""

from __future__ import annotations

from collections.abc import Callable

import click

from astha.cli.options import json_option, settings_options
from astha.cli.output import confirm, counted, print_json
from astha.cli.progress import progress
from astha.cli.store import with_store
from astha.settings import Settings
from components.lib.lake.table_lookup import begin_drop, find_table, finish_drop, full_name
from registry.contract import MetadataStore


@click.command("drop", short_help="Drop a table.")
@click.argument("table", metavar="[DATABASE.]TABLE")
@click.option("--purge", is_flag=True, help="Also delete its files, once no snapshot needs them.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@settings_options
@json_option
def drop_command(reload: Callable[[], Settings], table: str, purge: bool, yes: bool, as_json: bool) -> None:
    """Drop a table from the registry; the daemon drops it from Iceberg's catalog.

    If the command is interrupted, the daemon completes the drop; so does running the command again.

    \b
    Examples:
      astha tables drop sales.orders
      astha tables drop sales.orders --purge --yes
    """
    settings = reload()
    found = with_store(settings, lambda store: find_table(store, table))
    files = "and deletes its files" if purge else "and leaves its files where they are"
    size = f"{counted(found.row_count, 'row')} in {counted(found.file_count, 'file')}"
    confirm(f"this drops {full_name(found)} with {size}, {files}", yes)

    async def drop(store: MetadataStore) -> bool:
        purged = await begin_drop(store, found, purge=purge)
        await finish_drop(store, found)
        return purged

    with progress(f"dropping {full_name(found)}", quiet=as_json):
        purged = with_store(settings, drop)
    if as_json:
        print_json({"dropped": full_name(found), "purged": purged, "files": found.file_count})
    else:
        after = "its files will be deleted" if purged else f"its files stay at {found.location}"
        click.echo(f"dropped {full_name(found)}; {after}")
