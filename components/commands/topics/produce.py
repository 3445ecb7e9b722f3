"""`astha produce`: append lines to a topic."""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from pathlib import Path
from time import monotonic
from typing import IO

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.clock import SystemLoopClock
from astha.gc_tuning import FreezingCollector
from astha.settings import Settings
from astha.wiring import context
from components.commands.stderr_logging import log_to_stderr
from components.commands.topics.record_text import BadLine, read_json, read_line
from components.lib.lake.storage.objects import StorageError
from components.lib.streams.agents import LeaseAgent
from components.lib.streams.errors import AppendFailed, AppendUnknown, NotLeader
from components.lib.streams.format import NewRecord
from components.lib.streams.writer import Producer, SegmentWriter
from registry.connect import open_store
from registry.errors import NotFound

_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 256 << 20


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
    separator = None if key_separator is None else key_separator.encode()

    def read(line: bytes) -> tuple[NewRecord, int | None]:
        return read_json(line) if json_lines else read_line(line, separator)

    started = monotonic()
    with log_to_stderr(), FreezingCollector():
        written = asyncio.run(_produce(reload(), topic, source, partition, read))
    seconds = round(monotonic() - started, 3)
    records = sum(written.values())
    if as_json:
        print_json({"topic": topic, "records": records, "partitions": written, "seconds": seconds})
    else:
        many = f"{len(written)} partition{'s' * (len(written) != 1)}"
        click.echo(f"{topic}: {records:,} records in {many} ({seconds:.1f} s)")


async def _produce(
    settings: Settings,
    topic: str,
    source: Path | None,
    partition: int | None,
    read: Callable[[bytes], tuple[NewRecord, int | None]],
) -> dict[int, int]:
    clock = SystemLoopClock()
    url = settings.registry.url.get_secret_value()
    store = await open_store(url, settings=settings.registry.store, clock=clock)
    written: dict[int, int] = defaultdict(int)
    try:
        found = await store.get_topic(topic)
        if found is None:
            raise NotFound(f"topic {topic!r} does not exist: create it with `astha topics create`")
        choose = partition_chooser(found.partition_count, partition)
        component_context = context(settings, store, clock)
        async with LeaseAgent(store, clock) as agent, SegmentWriter(component_context, agent) as writer:
            producer = Producer(writer, clock)
            number = 0
            async for lines in _lines(source):
                parts: dict[int, list[NewRecord]] = defaultdict(list)
                for line in lines:
                    number += 1
                    try:
                        record, named = read(line)
                    except BadLine as error:
                        raise _failure(f"line {number}: {error}", written, Exit.USAGE) from error
                    parts[choose(record, named)].append(record)
                await _append(producer, topic, parts, written)
    finally:
        await store.close()
    return dict(sorted(written.items()))


async def _append(producer: Producer, topic: str, parts: dict[int, list[NewRecord]], written: dict[int, int]) -> None:
    """Tries all appends, and counts those that succeeded before it raises the first failure."""
    results = await asyncio.gather(
        *(producer.append(topic, number, records) for number, records in parts.items()), return_exceptions=True
    )
    failures = []
    for result in results:
        if isinstance(result, BaseException):
            failures.append(result)
        else:
            written[result.partition_id] += result.count
    for error in failures:
        if isinstance(error, AppendFailed | AppendUnknown | NotLeader | StorageError):
            raise _failure(str(error), written, Exit.UNAVAILABLE) from error
        raise error


def partition_chooser(partitions: int, fixed: int | None) -> Callable[[NewRecord, int | None], int]:
    """Chooses the partition that a line names, else the fixed one, else that of its key, else the next one."""
    turns = count()

    def choose(record: NewRecord, named: int | None) -> int:
        chosen = fixed if named is None else named
        if chosen is not None:
            return chosen
        if record.key is not None:
            return zlib.crc32(record.key) % partitions
        return next(turns) % partitions

    return choose


async def _lines(source: Path | None) -> AsyncIterator[Sequence[bytes]]:
    """Yields complete lines as they arrive."""
    file: IO[bytes] = sys.stdin.buffer if source is None else await asyncio.to_thread(source.open, "rb")
    rest = b""
    try:
        while data := await asyncio.to_thread(_read_available, file):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _MAX_LINE_BYTES:
                raise Failure(
                    f"a line has more than {_MAX_LINE_BYTES:,} bytes: the input must be lines of text", Exit.USAGE
                )
            if lines:
                yield lines
        if rest:
            yield [rest]
    finally:
        if source is not None:
            file.close()


def _read_available(file: IO[bytes]) -> bytes:
    try:
        return os.read(file.fileno(), _READ_BYTES)
    except (OSError, ValueError):  # not an operating system file
        return file.read(_READ_BYTES)


def _failure(why: str, written: dict[int, int], code: Exit) -> Failure:
    return Failure(f"{why} ({sum(written.values()):,} records were written before)", code)
