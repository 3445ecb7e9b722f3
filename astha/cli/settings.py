"""`astha settings`: all of them, or those in force."""

from __future__ import annotations

from collections.abc import Callable

import click

from astha.cli import settings_reference as reference
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json, print_pairs
from astha.settings import Settings


@click.command("settings", short_help="Every setting, its default and what it is for.")
@settings_options
@click.option("--effective", is_flag=True, help="The values in force instead, without secrets.")
@click.option("--markdown", is_flag=True, help="As docs/settings.md has it.")
@json_option
def settings_command(reload: Callable[[], Settings], effective: bool, markdown: bool, as_json: bool) -> None:
    """List every setting with its default, the environment variable for it, and what it is for."""
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
