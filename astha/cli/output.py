"""How commands print results and ask. `astha.cli.table` prints tables, `astha.cli.progress` progress."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import click

from astha.cli.exit_codes import Exit, Failure


def print_json(value: object) -> None:
    import msgspec  # here: help needs none of it

    click.echo(msgspec.json.encode(value))


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Prints a table of names and values, without frames, for cut and grep."""
    width = max(map(len, pairs))
    for name, value in pairs.items():
        click.echo(f"{name:<{width}}  {value}")


def counted(number: int, noun: str) -> str:
    """Returns the number and its noun: ``1 file``, ``1,000 files``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def confirm(what: str, yes: bool) -> None:
    """Asks on a terminal before data is lost. Without a terminal, ``--yes`` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{what}: repeat with --yes to confirm", Exit.USAGE)
    if not click.confirm(f"{what}. Continue?", err=True):
        raise Failure("nothing was changed", Exit.PROBLEM)


def time_text(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
