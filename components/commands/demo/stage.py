"""Output of the demo: progress bars on a terminal, lines elsewhere, and a table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

Advance = Callable[[int], None]

_LINES = 5  # how often a long task speaks where there is no terminal


class Stage:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def show(self, title: str, columns: list[str], rows: dict[str, list[str]]) -> None:
        """Prints one row per figure and one column per backend or state."""
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for column in columns:
            table.add_column(column, justify="right")
        for name, values in rows.items():
            table.add_row(name, *values)
        self._console.print(table)

    def show_cells(self, title: str, cells: dict[str, dict[str, str]]) -> None:
        """Like `show`; `cells` holds figures by column, then by name. All columns have the same names."""
        things = next(iter(cells.values()))
        self.show(title, list(cells), {thing: [place[thing] for place in cells.values()] for thing in things})

    @contextmanager
    def working(self, what: str, total: int) -> Iterator[Advance]:
        """Shows the progress of a long task. Call the yielded function with the amount done since the last call."""
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                _Rate(),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self._console) as bars:
                task = bars.add_task(what, total=total)
                yield lambda amount: bars.advance(task, amount)
        else:
            yield self._lines(what, total)

    def _lines(self, what: str, total: int) -> Advance:
        started, done, spoken = monotonic(), 0, 0

        def advance(amount: int) -> None:
            nonlocal done, spoken
            done += amount
            if done * _LINES // total > spoken:
                spoken = done * _LINES // total
                self.say(f"{what}: {done:,} of {total:,}, {done / (monotonic() - started):,.0f}/s")

        return advance


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "")
