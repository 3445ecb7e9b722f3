"""The root of all commands."""

from __future__ import annotations

from typing import Any

import click

from astha.cli.check import check_command
from astha.cli.control import pause_command, refresh_command, resume_command, status_command
from astha.cli.exits import LEGEND, failure_of
from astha.cli.plugins import PluggableGroup
from astha.cli.registry import registry_commands
from astha.cli.run import run_command
from astha.cli.settings import settings_command
from astha.cli.subscriptions import subscriptions_command
from astha.cli.tail import tail_command


class Root(PluggableGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise failure_of(error) from error


@click.group("astha", cls=Root, epilog=LEGEND, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="astha", message="%(prog)s %(version)s")
def main() -> None:
    """The nervous system of a lakehouse.

    Astha keeps a registry of streams and lake tables, and pushes every committed change of it, in order, to the
    components that do the work.
    """


for command in (
    run_command,
    check_command,
    status_command,
    refresh_command,
    pause_command,
    resume_command,
    tail_command,
    subscriptions_command,
    settings_command,
    registry_commands,
):
    main.add_command(command)
