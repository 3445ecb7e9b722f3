"""Tables of commands: on a terminal as wide as it is, elsewhere as wide as their cells, for cut and grep."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence

import click

_GAP = 2
_LEAST = 6
"""Columns of a narrow terminal are not cut below this width; the lines are wrapped then."""

_READABLE = 24
"""Optional columns are left out before others are cut below this width."""


def print_rows(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Prints a table without frames. The columns named in ``right`` are aligned to the right, and never cut. Those in
    ``optional`` are left out on a terminal that is too narrow: first the ones with only zeros, then in this order.
    """
    widths = _widths(header, rows)
    if sys.stdout.isatty():
        available = shutil.get_terminal_size().columns
        needed = [width if name in right else min(width, _READABLE) for name, width in zip(header, widths, strict=True)]
        kept = _kept(rows, needed, [header.index(name) for name in optional], available)
        header, *rows = [[row[column] for column in kept] for row in (header, *rows)]
        widths = fitted(_widths(header, rows), [name in right for name in header], available)
    for row in (header, *rows):
        cells = [
            f"{cell:>{width}}" if name in right else f"{cut(cell, width):<{width}}"
            for cell, width, name in zip(row, widths, header, strict=True)
        ]
        click.echo((" " * _GAP).join(cells).rstrip())


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]


def _kept(rows: Sequence[Sequence[str]], needed: Sequence[int], optional: Sequence[int], available: int) -> list[int]:
    """Returns the columns that remain. ``needed`` are their widths."""
    kept = list(range(len(needed)))
    for column in sorted(optional, key=lambda column: any(row[column] not in ("", "0") for row in rows)):
        if sum(needed[each] for each in kept) + _GAP * (len(kept) - 1) <= available:
            break
        kept.remove(column)
    return kept


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
