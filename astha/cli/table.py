"""Tables of commands: on a terminal as wide as it is, elsewhere as wide as their cells, for cut and grep."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence

import click

_GAP = 2
_LEAST = 6
"""Columns of a narrow terminal are not cut below this width; the lines are wrapped then."""


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> None:
    """Prints a table without frames. The columns named in ``right`` are aligned to the right, and never cut."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    if sys.stdout.isatty():
        widths = fitted(widths, [name in right for name in header], shutil.get_terminal_size().columns)
    for row in (header, *rows):
        cells = [
            f"{cell:>{width}}" if name in right else f"{cut(cell, width):<{width}}"
            for cell, width, name in zip(row, widths, header, strict=True)
        ]
        click.echo((" " * _GAP).join(cells).rstrip())


def fitted(widths: Sequence[int], fixed: Sequence[bool], available: int) -> list[int]:
    """Returns the widths, the widest ones reduced until all columns fit. Columns that are ``fixed`` keep theirs."""
    found = list(widths)
    excess = sum(found) + _GAP * (len(found) - 1) - available
    while excess > 0:
        widest = max((column for column in range(len(found)) if not fixed[column]), key=found.__getitem__, default=None)
        if widest is None or found[widest] <= _LEAST:
            break
        found[widest] -= 1
        excess -= 1
    return found


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
