"""`astha consume`: print the records of a topic as lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import settings_options
from components.commands.parameters import OffsetSpecParam

if TYPE_CHECKING:
    from astha.settings import Settings
    from components.lib.streams.offset_spec import OffsetSpec


@click.command("consume", short_help="Print the records of a topic.")
@click.argument("topic")
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition; repeatable."
)
@click.option(
    "--from", "start", type=OffsetSpecParam(), help="earliest (the default), latest, an offset, a time, or -15m."
)
@click.option("--to", "stop", type=OffsetSpecParam(), help="Where to end, exclusive; default: the current end.")
@click.option("--follow", is_flag=True, help="Wait for more records until interrupted.")
@click.option("--group", help="Read as a member of this group, and commit what is printed.")
@click.option("-n", "--max", "max_records", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("--key-separator", metavar="TEXT", help="Print keys too, followed by this separator.")
@click.option(
    "--skip-lost",
    is_flag=True,
    help="If records were deleted before they were read, continue at the first retained one.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path, file_okay=False), help="Directory of a disk cache of up to 1 GiB."
)
@settings_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line, with key, offset, timestamp and headers."
)
def consume_command(
    topic: str,
    partitions: tuple[int, ...],
    start: OffsetSpec | None,
    stop: OffsetSpec | None,
    follow: bool,
    group: str | None,
    max_records: int | None,
    key_separator: str | None,
    skip_lost: bool,
    cache: Path | None,
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Print the values of TOPIC's records, one per line, each partition in order.

    With --group, printed records are committed once a second and at the end: after a crash, records of the last second
    may be printed again, and none is skipped. Members of the same group share the partitions and, without --follow, end
    when the group has committed everything. With --from, --to or --partition, partitions are not shared.

    \b
    Examples:
      astha consume orders --from -15m --follow
      astha consume orders --group billing --json
      astha consume orders --partition 3 --from 1000 --to 2000
    """
    # Imported here: help does not wait for them.
    from astha.gc_tuning import FreezingCollector
    from components.commands.stderr_logging import log_to_stderr
    from components.commands.topics.consume_run import ConsumeRun
    from components.commands.topics.record_text import write_json, write_line

    if follow and stop is not None:
        raise Failure("--follow has no end: omit --to", Exit.USAGE)
    write = write_json if as_json else write_line(None if key_separator is None else key_separator.encode())
    run = ConsumeRun(
        topic, partitions, start, stop, follow, group, max_records, "earliest" if skip_lost else None, cache, write
    )
    with log_to_stderr(), FreezingCollector(), suppress(BrokenPipeError):  # the reader of the pipe has ended
        asyncio.run(run.run(reload()))
