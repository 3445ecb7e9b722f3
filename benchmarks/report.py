"""Results of a benchmark as a table or JSON, and the sampling that all benchmarks share."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from math import isnan
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

_STDOUT, _STDERR = 1, 2  # as every process has them, also one that is started

Metric = Callable[["Report"], Coroutine[None, None, None]]


@dataclass(frozen=True)
class Figure:
    """``detail`` says what was compared with what, and the absolute numbers behind the ratio.

    What could not be measured is NaN, which reaches no goal.
    """

    name: str
    value: float
    detail: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def goal(self) -> str:
        if self.at_most is not None:
            return f"<= {self.at_most:.3g}"
        return "" if self.at_least is None else f">= {self.at_least:.3g}"

    def as_json(self) -> float | None:
        return None if isnan(self.value) else round(self.value, 4)

    @property
    def reached(self) -> bool:
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)


@dataclass
class Report:
    quick: bool
    figures: list[Figure] = field(default_factory=list)
    started: float = field(default_factory=perf_counter)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])

    def add(
        self, name: str, value: float, detail: str, *, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        self.figures.append(Figure(name, value, detail, at_most, at_least))
        self.say(f"{name} = {value:.3g}")

    def say(self, text: str) -> None:
        """Prints progress to stderr; stdout is for the result."""
        print(f"{perf_counter() - self.started:5.1f} s  {text}", file=sys.stderr, flush=True)

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def run(title: str, measure: Metric, *options: argparse.ArgumentParser) -> int:
    """The command line of a benchmark. ``options`` are further ones, which the caller has read."""
    parser = argparse.ArgumentParser(description=title, parents=options)
    parser.add_argument("--json", action="store_true", help="print one JSON object, figure -> value")
    parser.add_argument("--quick", action="store_true", help="fewer samples, most in under 50 seconds")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure misses its goal")
    wanted = parser.parse_args()
    report = Report(wanted.quick)
    with stdout_for_the_result():
        asyncio.run(measure(report))
    if wanted.json:
        print(json.dumps({figure.name: figure.as_json() for figure in report.figures}))
    else:
        _print_table(f"{title} ({perf_counter() - report.started:.0f} s)", report)
    return int(wanted.check and not all(figure.reached for figure in report.figures))


@contextmanager
def stdout_for_the_result() -> Iterator[None]:
    """Redirects stdout to stderr, for loggers, libraries and started processes too."""
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _print_table(title: str, report: Report) -> None:
    table = Table(title=title, title_justify="left", show_lines=True)
    for column, justify in (("figure", "left"), ("value", "right"), ("goal", "right"), ("what was compared", "left")):
        table.add_column(column, justify=justify, no_wrap=column != "what was compared")  # type: ignore[arg-type]
    for figure in report.figures:
        value = f"{figure.value:,.0f}" if figure.value >= 1_000 else f"{figure.value:.3g}"
        if figure.reached:
            table.add_row(figure.name, value, figure.goal, figure.detail)
        else:
            table.add_row(figure.name, f"[red]{value}[/]", f"{figure.goal} [red]missed[/]", figure.detail)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    goals = [figure for figure in report.figures if figure.goal]
    console.print(f"{sum(figure.reached for figure in goals)} of {len(goals)} goals reached")
    loads = f"{report.load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    console.print(f"{os.cpu_count()} cores, load average {loads}; goals are for a quiet machine")


def percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


def rates(amount: int, seconds: list[float]) -> float:
    """Returns the rate, from the median of the times that ``amount`` of them took."""
    return amount / median(seconds)


async def interleaved(rounds: int, **contestants: Callable[[int], Awaitable[object]]) -> dict[str, list[float]]:
    """Returns the seconds of each contender, round by round, so that a disturbance of the machine affects all of them.

    Who begins alternates. The first round warms up and is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        order = list(contestants.items())
        for name, contestant in order if number % 2 else reversed(order):
            started = perf_counter()
            await contestant(number)
            seconds[name].append(perf_counter() - started)
    return {name: samples[1:] for name, samples in seconds.items()}
