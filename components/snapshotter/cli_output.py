"""What the commands say, for people; for machines the same as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from registry.json_text import parse_json
from registry.models import LakeTable, TableSnapshot

if TYPE_CHECKING:
    from components.snapshotter.expiration import Report


def row_of(table: LakeTable, row: TableSnapshot) -> dict[str, Any]:
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


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        click.echo("no snapshots")
        return
    shown = Table(box=None, pad_edge=False, header_style="")
    for column in ("table", "tag", "status", "trigger", "snapshot", "rows", "requested", "reason"):
        shown.add_column(column, justify="right" if column == "rows" else "left", no_wrap=column != "reason")
    for row in rows:
        rows_there = row["summary"].get("total-records") if isinstance(row["summary"], dict) else None
        shown.add_row(
            row["table"],
            row["tag"] or "",
            row["status"],
            row["trigger"],
            str(row["snapshot_id"] or ""),
            "" if rows_there is None else f"{int(rows_there):,}",
            datetime.fromtimestamp(row["requested_at"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            row["reason"] or "",
        )
    Console(width=max(Console().width, 140)).print(shown)


def print_reports(reports: Sequence[Report], verb: str, *, explain: bool) -> None:
    """What went, and with ``explain`` what stayed; the sum at the end."""
    gone = stayed = size = 0
    for report in reports:
        for verdict in report.verdicts:
            if verdict.goes or explain:
                click.echo(f"{verb if verdict.goes else 'stays'}  {report.table}  {verdict.name}  {verdict.why}")
            gone, stayed = gone + verdict.goes, stayed + (not verdict.goes)
            size += verdict.size_bytes if verdict.goes else 0
        for row_id in report.released:
            click.echo(f"released  {report.table}  snapshot {row_id}, whose grace is over")
        if report.problem is not None:
            click.echo(f"{report.table}: {report.problem}", err=True)
    click.echo(f"{gone:,} {verb}{f' ({size:,} bytes)' if size else ''}, {stayed:,} stay")
