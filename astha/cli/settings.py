"""`astha settings`: the reference of all settings, or their effective values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json, print_pairs

if TYPE_CHECKING:
    from astha.settings import Settings


@click.command("settings", short_help=SHORT_HELP["settings"])
@settings_options
@click.option("--effective", is_flag=True, help="Print the effective values instead, without secrets.")
@click.option("--markdown", is_flag=True, help="Print docs/reference/settings.md.")
@json_option
def settings_command(reload: Callable[[], Settings], effective: bool, markdown: bool, as_json: bool) -> None:
    """List every setting with its default, its environment variable and its purpose.

    \b
    Examples:
      astha settings
      astha settings --effective --config /etc/astha/astha.yaml
    """
    from astha.cli import settings_reference as reference

    if markdown:
        click.echo(reference.markdown(), nl=False)
    elif effective:
        values = reference.values(reload())
        print_json(values) if as_json else print_pairs(values)
    elif as_json:
        print_json(reference.entries())
    else:
        for entry in reference.entries():
            click.echo(f"{entry.name} = {entry.default or '(none)'}\n    {entry.description}  [{entry.variable}]")
