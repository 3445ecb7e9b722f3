"""`astha subscriptions`: who gets what."""

from __future__ import annotations

from collections.abc import Callable

import click

from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.routing.subscriptions import read_subscriptions
from astha.settings import Settings
from registry.schema import PUBLISHED_TABLES


@click.command("subscriptions", short_help="Who gets what.")
@settings_options
@json_option
def subscriptions_command(reload: Callable[[], Settings], as_json: bool) -> None:
    """Show which component gets the changes of which tables, from the file. Neither registry nor daemon is asked."""
    path = reload().subscriptions
    found = read_subscriptions(path)
    if as_json:
        by_component = {name: {"use": entry.use, "tables": sorted(entry.tables)} for name, entry in found.items()}
        print_json({"file": str(path), "components": by_component})
        return
    if not found:
        click.echo(f"nobody subscribes ({path})")
        return
    width = max(map(len, PUBLISHED_TABLES))
    for table in PUBLISHED_TABLES:
        names = [name for name, entry in found.items() if table in entry.tables]
        click.echo(f"{table:<{width}}  {', '.join(names) or '-'}")
