"""`astha subscriptions`: which component receives which tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json

if TYPE_CHECKING:
    from astha.settings import Settings


@click.command("subscriptions", short_help=SHORT_HELP["subscriptions"])
@settings_options
@json_option
def subscriptions_command(reload: Callable[[], Settings], as_json: bool) -> None:
    """Show which component receives the changes of which tables. Reads only the file.

    \b
    Example:
      astha subscriptions --subscriptions /etc/astha/subscriptions.yaml
    """
    from astha.routing.subscriptions import read_subscriptions
    from registry.schema import PUBLISHED_TABLES

    path = reload().subscriptions
    found = read_subscriptions(path)
    if as_json:
        by_component = {name: {"use": entry.use, "tables": sorted(entry.tables)} for name, entry in found.items()}
        print_json({"file": str(path), "components": by_component})
        return
    if not found:
        click.echo(f"no component is subscribed ({path})")
        return
    width = max(map(len, PUBLISHED_TABLES))
    for table in PUBLISHED_TABLES:
        names = [name for name, entry in found.items() if table in entry.tables]
        click.echo(f"{table:<{width}}  {', '.join(names) or '-'}")
