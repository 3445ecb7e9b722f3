"""`astha status --all`: the daemons and components of all groups, from the registry alone."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from astha.cli.output import time_text
from astha.cli.store import with_store
from astha.cli.table import print_rows
from astha.daemon_groups import read_groups
from astha.settings import Settings
from registry.clock import SystemClock


def groups_of(settings: Settings) -> dict[str, Any]:
    found = with_store(settings, lambda store: read_groups(store, SystemClock()))
    groups: list[dict[str, Any]] = settings.redactor().values(msgspec.to_builtins(found))
    return {"registry": settings.registry.shown, "groups": groups}


def print_groups(found: dict[str, Any]) -> None:
    if not found["groups"]:
        click.echo(f"no daemon runs on {found['registry']}, and none has left an entry in the ledger")
        return
    for number, group in enumerate(found["groups"]):
        if number:
            click.echo()
        _print_group(group)


def _print_group(group: dict[str, Any]) -> None:
    click.echo(f"group {group['name']}")
    if group["daemons"]:
        rows = [_daemon_row(daemon) for daemon in group["daemons"]]
        print_rows(("daemon", "host", "pid", "source", "version", "seen"), rows, right=("pid",))
    else:
        click.echo("no daemon runs")
    click.echo()
    if group["components"]:
        rows = [_component_row(component) for component in group["components"]]
        header = ("component", "state", "lag", "position", "updated", "reason")
        print_rows(header, rows, right=("lag", "position"), optional=("position", "updated"))
    else:
        click.echo("no component is in the ledger")


def _daemon_row(daemon: dict[str, Any]) -> tuple[str, ...]:
    seen = f"{daemon['seen_s']:.0f} s ago"
    return (
        "gone" if daemon["gone"] else daemon["role"],
        daemon["host"],
        str(daemon["pid"]),
        daemon["source"],
        daemon["version"],
        f"{seen}, as {daemon['role']}" if daemon["gone"] else seen,
    )


def _state(component: dict[str, Any]) -> str:
    state = component["state"] if component["running"] else f"not running, was {component['state']}"
    return f"{state}, owes a refresh" if component["refresh_owed"] else str(state)


def _component_row(component: dict[str, Any]) -> tuple[str, ...]:
    return (
        component["name"],
        _state(component),
        "" if component["lag"] is None else f"{component['lag']:,}",
        "" if component["position"] is None else str(component["position"]),
        time_text(component["updated_at"]),
        " ".join((component["reason"] or "").split()),
    )
