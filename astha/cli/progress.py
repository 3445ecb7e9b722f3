"""Progress of commands that may take more than a second, on stderr.

On a terminal one line is updated in place. Elsewhere a line is printed every few seconds, or none with ``quiet``, as
commands set it for ``--json``. A command that ends within a second prints nothing.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import click

from astha.cli.table import cut
from astha.quantities import format_size

_REDRAW_S = 0.2
_LINE_EVERY_S = 5.0
_SILENT_S = 1.0
_CLEAR = "\r\x1b[K"

_running: list[Progress] = []
"""Of this process. The innermost is shown: it knows best what is being done."""


class Progress:
    """What is being done. Any thread may report; the line is drawn by a thread of its own, so that a blocked one shows
    how long it takes."""

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._began = monotonic()
        self._state = ""

    def __call__(self, name: str, done: int, total: int | None = None) -> None:
        """Reports that ``done`` of ``total`` units of ``name`` are done. An empty ``name`` means all of the work."""
        amount = self._amount(done) if total is None else f"{self._amount(done)} of {self._amount(total)}"
        counted = amount if self._unit == "bytes" else f"{amount} {self._unit}"
        self._state = f"{name}: {counted}" if name else counted

    def note(self, text: str) -> None:
        """Reports a step that has no amount, such as ``starting Spark``."""
        self._state = text

    def line(self) -> str:
        elapsed = f"{self.elapsed_s():.0f} s"
        return ", ".join(filter(None, (f"{self._what}: {self._state}" if self._state else self._what, elapsed)))

    def elapsed_s(self) -> float:
        return monotonic() - self._began

    def _amount(self, number: int) -> str:
        return format_size(number) if self._unit == "bytes" else f"{number:,}"


@contextmanager
def progress(what: str, *, quiet: bool = False, unit: str = "") -> Iterator[Progress]:
    """Shows ``what`` is being done until the block ends, or until another such block begins in it, and after that."""
    shown = Progress(what, unit)
    terminal = sys.stderr.isatty()
    if quiet and not terminal:
        yield shown
        return
    ended = threading.Event()
    thread = threading.Thread(target=_update if terminal else _print_lines, args=(shown, ended), daemon=True)
    thread.start()
    _running.append(shown)
    try:
        yield shown
    finally:
        _running.remove(shown)
        ended.set()
        thread.join()


def _update(shown: Progress, ended: threading.Event) -> None:
    if ended.wait(_SILENT_S):
        return
    while not ended.wait(_REDRAW_S):
        if _running[-1:] != [shown]:
            continue
        width = shutil.get_terminal_size().columns - 1
        # The cursor returns to the first column: a log line that is printed now overwrites this one.
        click.echo(f"{_CLEAR}{cut(shown.line(), width)}\r", err=True, nl=False)
    click.echo(_CLEAR, err=True, nl=False)


def _print_lines(shown: Progress, ended: threading.Event) -> None:
    while not ended.wait(_LINE_EVERY_S):
        if _running[-1:] == [shown]:
            click.echo(shown.line(), err=True)
