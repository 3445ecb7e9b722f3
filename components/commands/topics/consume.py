"""`astha consume`: print the records of a topic as lines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import settings_options
from astha.clock import SystemLoopClock
from astha.gc_tuning import FreezingCollector
from astha.settings import Settings
from astha.wiring import context
from components.commands.parameters import OffsetSpecParam
from components.commands.stderr_logging import log_to_stderr
from components.commands.topics.record_text import Write, write_json, write_line
from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.streams.consumer import Consumer
from components.lib.streams.errors import OffsetBeyondEnd, OffsetTooOld
from components.lib.streams.group_consumer import GroupConsumer
from components.lib.streams.offset_spec import OffsetSpec, resolve_offsets
from components.lib.streams.offsets import GroupOffsets, OffsetReset
from components.lib.streams.read_context import ReadContext, open_read_context
from registry.connect import open_store
from registry.errors import NotFound

_WAIT_S = 1.0
_COMMIT_EVERY_S = 1.0
_GROUP_CHECK_S = 0.1  # between checks whether the other members have committed everything


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
    if follow and stop is not None:
        raise Failure("--follow has no end: omit --to", Exit.USAGE)
    write = write_json if as_json else write_line(None if key_separator is None else key_separator.encode())
    run = _ConsumeRun(
        topic, partitions, start, stop, follow, group, max_records, "earliest" if skip_lost else None, cache, write
    )
    with log_to_stderr(), FreezingCollector(), suppress(BrokenPipeError):  # the reader of the pipe has ended
        asyncio.run(run.run(reload()))


class _ConsumeRun:
    def __init__(
        self,
        topic: str,
        partitions: Sequence[int],
        start: OffsetSpec | None,
        stop: OffsetSpec | None,
        follow: bool,
        group: str | None,
        max_records: int | None,
        reset: OffsetReset | None,
        cache: Path | None,
        write: Write,
    ) -> None:
        self._topic, self._partitions, self._start, self._stop = topic, partitions, start, stop
        self._follow, self._group, self._max_records = follow, group, max_records
        self._reset, self._cache, self._write = reset, cache, write

    async def run(self, settings: Settings) -> None:
        clock = SystemLoopClock()
        url = settings.registry.url.get_secret_value()
        store = await open_store(url, settings=settings.registry.store, clock=clock)
        try:
            component_context = context(settings, store, clock)
            disk = None if self._cache is None else (self._cache, 1 << 30)
            async with open_read_context(component_context, settings, follow=self._follow, disk=disk) as read_context:
                await self._consume(read_context, sys.stdout.buffer)
        except (OffsetTooOld, OffsetBeyondEnd) as error:
            hint = "; continue there with --skip-lost" if isinstance(error, OffsetTooOld) else ""
            raise Failure(f"{error}{hint}", Exit.PROBLEM) from error
        except StorageUnavailable as error:
            raise Failure(settings.redactor()(str(error)), Exit.UNAVAILABLE) from error
        finally:
            await store.close()

    async def _consume(self, read_context: ReadContext, out: IO[bytes]) -> None:
        rows = {row.partition_id: row for row in await read_context.store.list_partitions(self._topic)}
        missing = [number for number in self._partitions if number not in rows]
        if missing:
            raise NotFound(f"topic {self._topic!r} has no partition {missing[0]}: it has {len(rows)} partitions")
        numbers = sorted(set(self._partitions) or rows)
        if self._group is not None and not self._partitions and self._start is None and self._stop is None:
            stop_offsets = None if self._follow else {number: row.high_watermark for number, row in rows.items()}
            member = GroupConsumer(
                read_context.prefetcher, self._group, self._topic, reset=self._reset, stop_offsets=stop_offsets
            )
            await self._read(member, read_context, out)
            return
        start = await self._starts(read_context, numbers)
        for number, offset in start.items():
            if offset > rows[number].high_watermark:
                raise OffsetBeyondEnd(self._topic, number, offset, rows[number].high_watermark)
        stop = "latest" if self._stop is None else self._stop
        stop_offsets = None if self._follow else await resolve_offsets(read_context.reader, self._topic, numbers, stop)
        consumer = Consumer(
            read_context.prefetcher, self._topic, start, group=self._group, reset=self._reset, stop_offsets=stop_offsets
        )
        await self._read(consumer, read_context, out)

    async def _read(self, consumer: Consumer | GroupConsumer, read_context: ReadContext, out: IO[bytes]) -> None:
        async with consumer:
            try:
                await self._print(consumer, read_context, out)
            except asyncio.CancelledError:  # interrupted: commit what was printed
                await consumer.commit()
                raise
            await consumer.commit()
        if consumer.skipped:
            click.echo(f"{consumer.skipped:,} records were deleted before they were read", err=True)

    async def _print(self, consumer: Consumer | GroupConsumer, read_context: ReadContext, out: IO[bytes]) -> None:
        left = self._max_records
        clock = read_context.reader.clock
        committed = clock.monotonic()
        while left != 0:
            polled = await consumer.poll(max_records=left, wait_s=_WAIT_S if self._follow else 0.0)
            if polled is not None:
                number = polled.partition_id
                lines = [self._write(number, record) for record in polled.records]
                out.write(b"".join(lines))
                out.flush()
                left = None if left is None else left - len(lines)
            elif not self._follow:
                if not isinstance(consumer, GroupConsumer) or await consumer.finished():
                    break
                await clock.sleep(_GROUP_CHECK_S)
            if clock.monotonic() - committed >= _COMMIT_EVERY_S:
                await consumer.commit()
                committed = clock.monotonic()

    async def _starts(self, read_context: ReadContext, numbers: Sequence[int]) -> dict[int, int]:
        """Returns the requested offsets, else the group's, else the first."""
        if self._start is None and self._group is not None:
            return await GroupOffsets(read_context.store).resume_offsets(self._group, self._topic, numbers)
        start = "earliest" if self._start is None else self._start
        return await resolve_offsets(read_context.reader, self._topic, numbers, start)
