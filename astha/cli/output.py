"""How commands print: results on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING

import click

from astha.cli.exit_codes import Exit, Failure

if TYPE_CHECKING:  # neither is loaded for commands that print no progress
    from rich.progress import Progress, TaskID

    from registry.copy import CopyProgress as Report

_LINE_EVERY_S = 5.0


def print_json(value: object) -> None:
    import msgspec  # here: help needs none of it

    click.echo(msgspec.json.encode(value))


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Prints a table of names and values, without frames, for cut and grep."""
    width = max(map(len, pairs))
    for name, value in pairs.items():
        click.echo(f"{name:<{width}}  {value}")


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Prints a table without frames. The columns named in ``right`` are aligned to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        cells = [
            f"{cell:>{width}}" if name in right else f"{cell:<{width}}"
            for cell, width, name in zip(row, widths, header, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


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


@contextmanager
def table_progress(*, quiet: bool = False, unit: str = "rows") -> Iterator[Report]:
    """Shows the progress of each table: bars on a terminal, else a line every few seconds (none if ``quiet``)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if console.is_terminal:
        with Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as bars:
            yield _Bars(bars)
    else:
        yield _silent if quiet else _Lines(unit)


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, table: str, done: int, total: int) -> None:
        task = self._tasks.get(table)
        if task is None:
            task = self._tasks[table] = self._bars.add_task(table, total=total)
        self._bars.update(task, completed=done)


class _Lines:
    """Prints one line when a table is done, and one every few seconds for a large table."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._printed = monotonic()

    def __call__(self, table: str, done: int, total: int) -> None:
        now = monotonic()
        if done < total and now - self._printed < _LINE_EVERY_S:
            return
        if total:
            self._printed = now
            click.echo(f"{table}: {done:,} of {total:,} {self._unit}", err=True)


def _silent(_table: str, _done: int, _total: int) -> None:
    pass
