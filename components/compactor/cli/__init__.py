"""`astha compaction`: the group. Its commands are imported when they are needed."""

from __future__ import annotations

import click

from astha.cli.lazy import LazyGroup

_PLACES = {
    "cancel": "components.compactor.cli.subcommands:cancel_command",
    "explain": "components.compactor.cli.subcommands:explain_command",
    "list": "components.compactor.cli.subcommands:list_command",
    "run": "components.compactor.cli.subcommands:run_command",
    "savings": "components.compactor.cli.subcommands:savings_command",
}

_SHORT_HELPS = {
    "cancel": "Cancel waiting and running compactions.",
    "explain": "Explain what is decided for each partition now.",
    "list": "List decisions with their status and reason.",
    "run": "Compact a table now.",
    "savings": "Show what compaction has saved.",
}


@click.group(
    "compaction",
    cls=LazyGroup,
    places=_PLACES,
    short_helps=_SHORT_HELPS,
    short_help="Show, explain, run and cancel compactions.",
)
def commands() -> None:
    """Compaction merges small files into files of the target size, without losing a row.

    \b
    Examples:
      astha compaction explain sales.orders
      astha compaction run sales.orders
    """
