"""What the commands say, for people; for machines the same as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from astha.cli.output import print_rows, size_text, time_text
from registry.models import Compaction, Savings

_LONGEST = 80


def row_of(row: Compaction) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "explanation": row.explanation.load()}


def saved(sums: Savings) -> dict[str, Any]:
    """Each file that a query need not open any more is an open saved, for every query that reads its partition."""
    return {
        **msgspec.structs.asdict(sums),
        "files_saved": sums.input_files - sums.output_files,
        "bytes_saved": sums.input_bytes - sums.output_bytes,
    }


def print_decisions(rows: Sequence[Compaction]) -> None:
    if not rows:
        click.echo("no decisions yet")
        return
    print_rows(
        ["id", "decided", "table", "partition", "status", "trigger", "files", "bytes", "strategy", "rule and reason"],
        [
            [
                str(row.id),
                time_text(row.decided_at),
                row.table_name,
                row.partition_path or "-",
                row.status + (" (cancelling)" if row.cancel_requested and row.status == "running" else ""),
                row.trigger,
                f"{row.input_files:,} -> {row.output_files:,}" if row.status == "done" else f"{row.input_files:,}",
                size_text(row.input_bytes),
                row.strategy or "",
                short(": ".join(filter(None, (row.rule, row.reason)))),
            ]
            for row in rows
        ],
        right=("id", "files", "bytes"),
    )


def print_savings(sums: Sequence[Savings]) -> None:
    if not sums:
        click.echo("nothing was compacted yet")
        return
    total = Savings(0, "all", *(sum(getattr(one, name) for one in sums) for name in _SUMMED))
    print_rows(
        ["table", "compactions", "files before", "after", "opens saved", "bytes before", "after", "rows"],
        [
            [
                one.table_name,
                f"{one.compactions:,}",
                f"{one.input_files:,}",
                f"{one.output_files:,}",
                f"{one.input_files - one.output_files:,}",
                size_text(one.input_bytes),
                size_text(one.output_bytes),
                f"{one.row_count:,}",
            ]
            for one in (*sums, *([total] if len(sums) > 1 else []))
        ],
        right=("compactions", "files before", "after", "opens saved", "bytes before", "rows"),
    )


def short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


_SUMMED = ("compactions", "input_files", "input_bytes", "output_files", "output_bytes", "row_count")
