"""`astha produce`: append lines to a topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from astha.cli.options import json_option, settings_options
from astha.cli.output import counted, print_json
from astha.cli.progress import progress

if TYPE_CHECKING:
    from astha.settings import Settings
    from components.lib.streams.format import NewRecord


@click.command("produce", short_help="Append lines to a topic.")
@click.argument("topic")
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File to read; default: stdin.",
)
@click.option(
    "--partition", type=click.IntRange(min=0), help="Partition of all records; default: by key, else round-robin."
)
@click.option("--key-separator", metavar="TEXT", help="Text between key and value in a line.")
@click.option("--json-lines", is_flag=True, help="Lines are JSON as printed by `astha consume --json`.")
@settings_options
@json_option
def produce_command(
    topic: str,
    source: Path | None,
    partition: int | None,
    key_separator: str | None,
    json_lines: bool,
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Append each line to TOPIC as a record, in order. Returns when all records are durable.

    Lines are appended as they arrive, so input can be typed or piped. Records with the same key go to the same
    partition.

    \b
    Examples:
      astha produce orders --input orders.txt
      echo 'eu:{"id": 1}' | astha produce orders --key-separator :
      astha consume orders --json | astha produce copy --json-lines
    """
    # Imported here: help does not wait for them.
    from astha.gc_tuning import FreezingCollector
    from components.commands.stderr_logging import log_to_stderr
    from components.commands.topics.produce_run import produce
    from components.commands.topics.record_text import read_json, read_line

    separator = None if key_separator is None else key_separator.encode()

    def read(line: bytes) -> tuple[NewRecord, int | None]:
        return read_json(line) if json_lines else read_line(line, separator)

    started = monotonic()
    typed = source is None and sys.stdin.isatty()  # progress would be drawn over the input
    shown = nullcontext() if typed else progress(f"appending to {topic}", quiet=as_json)
    with log_to_stderr(), FreezingCollector(), shown:
        written = asyncio.run(produce(reload(), topic, source, partition, read))
    seconds = round(monotonic() - started, 3)
    records = sum(written.values())
    if as_json:
        print_json({"topic": topic, "records": records, "partitions": written, "seconds": seconds})
    else:
        click.echo(f"{topic}: {counted(records, 'record')} in {counted(len(written), 'partition')} ({seconds:.1f} s)")
