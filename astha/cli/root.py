"""The group `astha`, with all commands below it."""

from __future__ import annotations

from typing import Any

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.exit_codes import LEGEND, failure_of, redactor_of
from astha.cli.plugins import PluggableGroup

_OWN = {
    "check": "astha.cli.check:check_command",
    "completion": "astha.cli.completion:completion_command",
    "component": "astha.cli.component:component_commands",
    "init": "astha.cli.init:init_command",
    "pause": "astha.cli.control:pause_command",
    "refresh": "astha.cli.control:refresh_command",
    "registry": "astha.cli.registry:registry_commands",
    "resume": "astha.cli.control:resume_command",
    "run": "astha.cli.run:run_command",
    "settings": "astha.cli.settings:settings_command",
    "status": "astha.cli.control:status_command",
    "subscriptions": "astha.cli.subscriptions:subscriptions_command",
    "tail": "astha.cli.tail:tail_command",
    "top": "astha.cli.top:top_command",
    "up": "astha.cli.up:up_command",
}
"""Imported when they run. `astha.cli.command_help` has their lines in the help."""


class Root(PluggableGroup):
    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Prints the help, which may import plug-ins."""
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt as error:
            raise failure_of(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = redactor_of(ctx)(error.message)  # type: ignore[misc]
            raise
        except (click.exceptions.Exit, click.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise failure_of(error, redactor_of(ctx)) from error


@click.group(
    "astha",
    cls=Root,
    places=_OWN,
    short_helps=SHORT_HELP,
    epilog=LEGEND,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="astha", message="%(prog)s %(version)s")
def main() -> None:
    """The nervous system of a lakehouse.

    Astha keeps a registry of streams and lake tables, and pushes every committed change of it, in order, to the
    components that do the work.

    \b
    Examples:
      astha init shop && cd shop && astha up
      astha tables create shop.orders --column id:long! --column region:string
      astha insert shop.orders orders.parquet
      astha status --watch
    """
