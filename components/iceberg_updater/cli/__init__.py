"""`astha iceberg`: the group. Its commands are imported when they are needed."""

from __future__ import annotations

import click

from astha.cli.lazy import LazyGroup

_PLACES = {
    "adopt": "components.iceberg_updater.cli.subcommands:adopt_command",
    "revert": "components.iceberg_updater.cli.subcommands:revert_command",
    "status": "components.iceberg_updater.cli.subcommands:status_command",
}

_SHORT_HELPS = {
    "adopt": "Adopt another engine's commits.",
    "revert": "Revert another engine's commits.",
    "status": "Show the state of each Iceberg table.",
}


@click.group(
    "iceberg",
    cls=LazyGroup,
    places=_PLACES,
    short_helps=_SHORT_HELPS,
    short_help="Show Iceberg tables and resolve other engines' commits.",
)
def commands() -> None:
    """Show the Iceberg tables that the updater maintains, and resolve commits of other engines to them.

    \b
    Example:
      astha iceberg status
    """
