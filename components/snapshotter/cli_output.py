"""Output of the commands: text for terminals, and records for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from astha.cli.output import time_text
from astha.cli.table import print_rows
from registry.json_text import parse_json
from registry.models import LakeTable, TableSnapshot

if TYPE_CHECKING:
    from components.snapshotter.retention import RetentionReport


def to_record(table: LakeTable, row: TableSnapshot) -> dict[str, Any]:
    return {
        "table": f"{table.database}.{table.name}",
        "id": row.id,
        "tag": row.tag,
        "status": row.status,
        "trigger": row.trigger,
        "snapshot_id": row.snapshot_id,
        "requested_at": row.created_at,
        "timestamp": row.timestamp,
        "schema_id": row.schema_id,
        "manifest_list": row.manifest_list,
        "summary": parse_json(row.summary),
        "reason": row.reason,
    }


def print_snapshots(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        click.echo("no snapshots")
        return
    header = ("table", "tag", "status", "trigger", "snapshot", "rows", "requested", "reason")
    print_rows(header, [_cells(row) for row in rows], right=("snapshot", "rows"))


def _cells(row: dict[str, Any]) -> list[str]:
    row_count = row["summary"].get("total-records") if isinstance(row["summary"], dict) else None
    return [
        row["table"],
        row["tag"] or "",
        row["status"],
        row["trigger"],
        str(row["snapshot_id"] or ""),
        "" if row_count is None else f"{int(row_count):,}",
        time_text(row["requested_at"]),
        row["reason"] or "",
    ]


def print_reports(reports: Sequence[RetentionReport], verb: str, *, explain: bool) -> None:
    """Prints what was removed, with `explain` also what was kept, and the totals."""
    removed = kept = size = 0
    for report in reports:
        for decision in report.decisions:
            if decision.remove or explain:
                action = verb if decision.remove else "kept"
                click.echo(f"{action}  {report.table}  {decision.name}  {decision.reason}")
            removed, kept = removed + decision.remove, kept + (not decision.remove)
            size += decision.size_bytes if decision.remove else 0
        for row_id in report.released:
            click.echo(f"released  {report.table}  snapshot {row_id}, grace period over")
        if report.problem is not None:
            click.echo(f"{report.table}: {report.problem}", err=True)
    click.echo(f"{removed:,} {verb}{f' ({size:,} bytes)' if size else ''}, {kept:,} kept")
