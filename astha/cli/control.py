"""`astha status`, `refresh`, `pause` and `resume`: the commands that call a running daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, NoReturn

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.exit_codes import Exit
from astha.cli.options import json_option, server_options, settings_options
from astha.cli.output import print_json, print_pairs, time_text
from astha.cli.table import print_rows
from astha.client import Client, NoDaemon

if TYPE_CHECKING:
    from astha.settings import Settings


def client_of(settings: Settings, server_url: str | None, token_file: Path | None) -> Client:
    from astha.settings import ServerSettings

    server = settings.server
    token = ServerSettings(token_file=token_file).secret() if token_file is not None else server.secret()
    return Client(server_url or server.url, token or server.read_secret(), server.tls_ca_file)


@click.command("status", short_help=SHORT_HELP["status"])
@settings_options
@server_options
@click.option(
    "--all", "all_groups", is_flag=True, help="Show the daemons and components of all groups, from the registry alone."
)
@click.option(
    "--watch",
    "every_s",
    is_flag=False,
    flag_value="2",
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help="Show it again and again, every 2 seconds or as given, until interrupted.",
)
@json_option
def status_command(
    reload: Callable[[], Settings],
    server_url: str | None,
    token_file: Path | None,
    all_groups: bool,
    every_s: float | None,
    as_json: bool,
) -> None:
    """Show a running daemon: leadership, source, and each component with its state and lag.

    Problems of single tables are listed below the components; they do not make the daemon unready.

    Exits with 0 if the daemon is ready or stands by, with 1 if changes do not reach every component.

    With --all no daemon is called: the registry has a row for each daemon, at most ten seconds old, and the ledger's
    entries of all components. The lag is counted in positions (bytes of WAL on PostgreSQL, changes on SQLite) behind
    the furthest position that the registry knows. Exits with 0.

    With --watch a daemon that does not answer is shown as such, until it does. With --json each time is one line.

    \b
    Examples:
      astha status
      astha status --watch 5
      astha status --all --json
    """
    settings = reload()

    def read() -> dict[str, Any]:
        if all_groups:
            from astha.cli.groups import groups_of  # here: it opens the registry

            return groups_of(settings)
        status: dict[str, Any] = client_of(settings, server_url, token_file).get("/status")
        return status

    def show(found: dict[str, Any]) -> None:
        if as_json:
            print_json(found)
        elif all_groups:
            from astha.cli.groups import print_groups

            print_groups(found)
        else:
            _print_status(found)

    if every_s is not None:
        _watch(read, show, every_s, as_json=as_json)
    show(found := read())
    if not (all_groups or found["ready"] or found["leadership"]["role"] == "standing by"):
        raise click.exceptions.Exit(Exit.PROBLEM)


def _watch(
    read: Callable[[], dict[str, Any]], show: Callable[[dict[str, Any]], None], every_s: float, *, as_json: bool
) -> NoReturn:
    """Clears a terminal each time, when the next text is there. Elsewhere an empty line separates the texts."""
    while True:
        problem = None
        try:
            found = read()
        except NoDaemon as error:
            problem = str(error)
            found = {"error": problem}
        if not as_json:
            click.clear()
            click.echo(f"{datetime.now(UTC):%H:%M:%S} UTC, every {every_s:g} s; Ctrl-C ends it\n")
        show(found) if problem is None or as_json else click.echo(problem)
        sys.stdout.flush()
        sleep(every_s)
        if not as_json and not sys.stdout.isatty():
            click.echo()


def _print_status(status: dict[str, Any]) -> None:
    leadership, source = status["leadership"], status["source"]
    epoch = f", epoch {leadership['epoch']}" if leadership["epoch"] is not None else ""
    pairs = {
        "daemon": f"{leadership['role']}{epoch} ({leadership['holder']})",
        "registry": status["registry"],
        "source": _source_line(source),
        "ready": _ready(status),
    }
    if leadership["role"] == "standing by":
        pairs["leader"] = leadership["leader"] or "unknown"
    if status["clock"]:
        pairs["clock"] = status["clock"]
    print_pairs(pairs)
    for reason in status["reasons"]:
        click.echo(f"  - {reason}")
    click.echo()
    if not status["components"]:
        click.echo("no component is subscribed")
        return
    _print_components(status["components"], source["unit"])
    for component in status["components"]:
        if component.get("failure"):
            click.echo(f"\n{failure_line(component)}")
    _print_problems(status["components"])


def failure_line(component: dict[str, Any]) -> str:
    """Why the component's last call failed, and when it is made again."""
    failure, circuit = component["failure"], component["breaker"].get("retry_in_s")
    again = failure["next_try_s"] if circuit is None else circuit
    tried = "" if again is None else f", tried again in {again:.0f} s"
    return (
        f"{component['name']}: {failure['call']} failed, attempt {failure['attempt']} of {failure['attempts']}{tried}: "
        f"{failure['error']} ({failure['hint']})"
    )


def _ready(status: dict[str, Any]) -> str:
    if not status["ready"]:
        return "no"
    count = sum(len(component.get("problems", ())) for component in status["components"])
    return f"yes, except for {count:,} problem{'s' * (count != 1)} below" if count else "yes"


def _print_problems(components: list[dict[str, Any]]) -> None:
    for component in components:
        for problem in component.get("problems", ()):
            tried = f", {problem['attempts']:,} attempts" if problem["attempts"] else ""
            again = "" if problem["next_try"] is None else f", next {time_text(problem['next_try'])}"
            click.echo(f"\n{component['name']}: {problem['subject']}: {problem['reason']}")
            click.echo(f"  since {time_text(problem['since'])}{tried}{again}")


def _source_line(source: dict[str, Any]) -> str:
    if not source["connected"]:
        return f"not connected: {source['detail'] or 'connecting'}"
    parts = [f"connected at {source['received']}"]
    if source["lag"] is not None:
        parts.append(f"{source['lag']:,} {source['unit']} behind the server")
    if source["retained_bytes"] is not None:
        parts.append(f"{source['retained_bytes']:,} bytes retained")
    if source["wal_status"] is not None:
        parts.append(f"wal_status {source['wal_status']}")
    return ", ".join(parts)


def _print_components(components: list[dict[str, Any]], unit: str) -> None:
    numbers = (f"lag ({unit})", "lag (s)", "queued", "delivered", "failures", "drops", "refreshes")
    rows = [_component_row(one) for one in components]
    optional = ("refreshes", "drops", "failures", "queued", "delivered", "lag (s)")
    print_rows(("component", "state", *numbers), rows, right=numbers, optional=optional)


def _component_row(component: dict[str, Any]) -> list[str]:
    counts = component["counts"]
    delivered = sum(number for by_operation in counts["delivered"].values() for number in by_operation.values())
    return [
        component["name"],
        component["state"],
        "" if component["lag"] is None else f"{component['lag']:,}",
        "" if component["lag_s"] is None else f"{component['lag_s']:.1f}",
        f"{component['queue']['events']:,}",
        f"{delivered:,}",
        f"{counts['failures']:,}",
        f"{counts['dropped']:,}",
        f"{counts['refreshes']:,}",
    ]


def _action(name: str, text: str) -> click.Command:
    @click.command(name, help=text, short_help=SHORT_HELP[name])
    @click.argument("component")
    @settings_options
    @server_options
    @json_option
    def command(
        component: str, reload: Callable[[], Settings], server_url: str | None, token_file: Path | None, as_json: bool
    ) -> None:
        answer = client_of(reload(), server_url, token_file).post(f"/components/{component}/{name}")
        if as_json:
            print_json(answer)
        else:
            reason = f": {answer['reason']}" if answer["reason"] else ""
            click.echo(f"{answer['name']} is {answer['state']}{reason}")

    return command


refresh_command = _action(
    "refresh",
    """Make a component read the registry again. Its queued events are dropped, because the registry contains them.

    \b
    Example:
      astha refresh compactor
    """,
)
pause_command = _action(
    "pause",
    """Stop deliveries to a component until it is resumed, across restarts. No events are kept for it.

    \b
    Example:
      astha pause compactor
    """,
)
resume_command = _action(
    "resume",
    """Resume deliveries to a paused component. It is refreshed first.

    \b
    Example:
      astha resume compactor
    """,
)
