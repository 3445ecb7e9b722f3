"""`astha top`: a running daemon at a glance, in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.control import client_of, failure_line
from astha.cli.options import server_options, settings_options
from astha.client import NoDaemon, Refused

if TYPE_CHECKING:
    from rich.console import RenderableType

    from astha.settings import Settings

_STYLES = {"live": "green", "broken": "bold red", "paused": "yellow", "recovering": "yellow", "bootstrapping": "yellow"}
_SHORT = {"waiting for the registry": "waiting", "standing by": "standby"}
_ADVICE = {
    "waiting for the registry": "Nothing is delivered until the registry can be used, and nothing is lost. "
    "`astha check` tests the connection.",
    "standing by": "It takes over when the leader stops. Ask the leader for state and actions.",
}
_WIDE = 96
_MOST_LINES = 6
"""Reasons and failures that are listed, so that the table stays on the screen."""

_SPARKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_SPARK_WIDTH = 20


@click.command("top", short_help=SHORT_HELP["top"])
@click.option("--once", is_flag=True, help="Print the state once, after two samples, and exit.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 60.0),
    default=1.0,
    show_default=True,
    help="Seconds between two samples.",
)
@settings_options
@server_options
def top_command(
    reload: Callable[[], Settings],
    server_url: str | None,
    token_file: Path | None,
    once: bool,
    interval_s: float,
) -> None:
    """Show a running daemon, again and again: source, and each component with its rate, lag, queue and circuit.

    Ctrl-C ends it. Without a terminal it prints once, as with --once.

    \b
    Examples:
      astha top
      astha top --once
    """
    from rich.console import Console
    from rich.live import Live

    client = client_of(reload(), server_url, token_file)
    samples = Rates()
    console = Console()
    if once or not sys.stdout.isatty():
        console = Console(width=max(console.width, _WIDE + 4))
        samples.add(client.get("/status"), time.monotonic())
        time.sleep(interval_s)
        console.print(samples.shown(client.get("/status"), time.monotonic(), console.width))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = samples.shown(client.get("/status"), time.monotonic(), console.width)
            except (NoDaemon, Refused) as error:
                kind = "no daemon" if isinstance(error, NoDaemon) else "refused"
                shown = f"[bold red]{kind}[/]  {_escaped(str(error))}\n\nIt is asked again. Ctrl-C ends this."
            live.update(shown, refresh=True)
            try:
                time.sleep(interval_s)
            except KeyboardInterrupt:
                return


class Rates:
    """Deliveries per second, between two statuses."""

    def __init__(self) -> None:
        self._delivered: dict[str, int] = {}
        self._at: float | None = None
        self._recent: dict[str, list[float]] = {}

    def add(self, status: dict[str, Any], now: float) -> dict[str, float]:
        rates: dict[str, float] = {}
        for component in status["components"]:
            name, delivered = component["name"], _delivered(component)
            passed = 0.0 if self._at is None else now - self._at
            gained = max(0, delivered - self._delivered.get(name, delivered))
            rates[name] = gained / passed if passed > 0 else 0.0
            self._delivered[name] = delivered
            self._recent[name] = [*self._recent.get(name, []), rates[name]][-_SPARK_WIDTH:]
        self._at = now
        return rates

    def shown(self, status: dict[str, Any], now: float, width: int = 120) -> RenderableType:
        """Leaves out columns that do not fit the width."""
        from rich.console import Group
        from rich.table import Table

        rates = self.add(status, now)
        leadership, source = status["leadership"], status["source"]
        ready = "[green]ready[/]" if status["ready"] else "[bold red]not ready[/]"
        lines = [
            f"[bold]astha {status['version']}[/]  {leadership['role']}  {ready}  {_escaped(status['registry'])}",
            *([_source_line(source)] if leadership["role"] == "leading" else []),
            *_listed([f"[red]- {_escaped(reason)}[/]" for reason in _reasons(status)]),
            *_listed([_escaped(f"! {failure_line(one)}") for one in status["components"] if one.get("failure")]),
            *([advice] if (advice := _ADVICE.get(leadership["role"])) else []),
            "",
        ]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("component", "state", "circuit"):
            table.add_column(column, no_wrap=True)
        for column in ("events/s", "lag", "queued", "failures"):
            table.add_column(column, justify="right", no_wrap=True)
        if width >= _WIDE:
            table.add_column("refreshes", justify="right", no_wrap=True)
            table.add_column("", no_wrap=True)
        for component in status["components"]:
            cells = _cells(component, rates[component["name"]], self._recent[component["name"]])
            table.add_row(*cells[: len(table.columns)])
        problems = sum(len(component["problems"]) for component in status["components"])
        plural = "" if problems == 1 else "s"
        after = (
            [f"\n{problems:,} problem{plural} with single tables: `astha status` describes them"] if problems else []
        )
        return Group(*lines, table, *after)


def _cells(component: dict[str, Any], rate: float, recent: list[float]) -> tuple[str, ...]:
    style = _STYLES.get(component["state"], "")
    state = _SHORT.get(component["state"], component["state"])
    if state == "live" and component.get("failure"):
        state, style = "retrying", "yellow"
    if style:
        state = f"[{style}]{state}[/]"
    circuit = component["breaker"]["state"]
    return (
        _escaped(component["name"]),
        state,
        circuit if circuit == "closed" else f"[bold red]{circuit}[/]",
        f"{rate:,.1f}",
        "" if component["lag_s"] is None else f"{component['lag_s']:.1f} s",
        f"{component['queue']['events']:,}",
        f"{component['counts']['failures']:,}",
        f"{component['counts']['refreshes']:,}",
        sparkline(recent),
    )


def _reasons(status: dict[str, Any]) -> list[str]:
    role = status["leadership"]["role"]
    if role == "standing by":
        return [f"{status['leadership']['leader'] or 'another daemon'} leads"]
    return [str(reason) for reason in status["reasons"]]


def _source_line(source: dict[str, Any]) -> str:
    if not source["connected"]:
        return f"source [bold red]not connected[/]: {_escaped(source['detail'])}"
    lag = "" if source["lag"] is None else f", {source['lag']:,} {source['unit']} behind the server"
    return f"source connected, at {source['received']:,}{lag}"


def _listed(lines: list[str]) -> list[str]:
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"  and {more} more: `astha status`"]


def sparkline(values: list[float]) -> str:
    most = max(values, default=0.0)
    return "".join(_SPARKS[round(value / most * (len(_SPARKS) - 1))] if most else " " for value in values)


def _delivered(component: dict[str, Any]) -> int:
    by_table = component["counts"]["delivered"].values()
    return sum(number for by_operation in by_table for number in by_operation.values())


def _escaped(text: str | None) -> str:
    """Keeps rich from taking the text for markup, and lines of drivers' messages together."""
    return "" if text is None else " ".join(text.split()).replace("[", "\\[")
