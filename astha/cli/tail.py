"""`astha tail`: events as they pass through a running daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.control import client_of
from astha.cli.options import server_options, settings_options
from astha.client import NoDaemon

if TYPE_CHECKING:
    from astha.settings import Settings

_LONGEST_VALUE = 60


@click.command("tail", short_help=SHORT_HELP["tail"])
@click.option("--table", help="Only events of this table.")
@click.option("--component", help="Only events that this component subscribes to.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Exit after this many events.")
@settings_options
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with whole rows.")
def tail_command(
    reload: Callable[[], Settings],
    server_url: str | None,
    token_file: Path | None,
    table: str | None,
    component: str | None,
    count: int | None,
    as_json: bool,
) -> None:
    """Print events from now on, until interrupted. Only subscribed tables have events.

    The daemon never waits for a slow reader; it reports how many events the reader has missed.

    \b
    Examples:
      astha tail --table table_files
      astha tail --component compactor --count 10 --json
    """
    left = count
    for line in client_of(reload(), server_url, token_file).lines("/events", table=table, component=component):
        if not line:
            continue
        event = json.loads(line)
        if as_json:
            click.echo(line)
        elif "missed" in event:
            click.echo(f"... missed {event['missed']:,} events: this reader is too slow", err=True)
        else:
            click.echo(_line(event))
        if left is not None and "missed" not in event:
            left -= 1
            if left == 0:
                return
    raise NoDaemon("the daemon has closed the stream")


def _line(event: dict[str, Any]) -> str:
    """Returns a line such as ``12:30:01.123  UPDATE topics  name=events  partition_count=3 (was 2)``."""
    time = datetime.fromtimestamp(event["committed_at_us"] / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
    before = event["before"] if event["operation"] == "UPDATE" else None
    values = []
    for name, value in event["data"].items():
        text = f"{name}={_shown(value)}"
        if before is not None and before.get(name) != value:
            text += f" (was {_shown(before.get(name))})"
        values.append(text)
    return f"{time}  {event['operation']:<6} {event['table']}  {'  '.join(values)}"


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
