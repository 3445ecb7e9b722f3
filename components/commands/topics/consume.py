"""`astha consume`: records of a topic, as lines."""

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
from components.commands.topics.logging import log_to_stderr
from components.commands.topics.record_text import Write, write_json, write_line
from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.streams.consumer import Consumer
from components.lib.streams.errors import OffsetBeyondEnd, OffsetTooOld
from components.lib.streams.group_consumer import Member
from components.lib.streams.offsets import Groups, Origin
from components.lib.streams.parsing import OffsetSpec, PlaceParam, offsets_at
from components.lib.streams.read_context import Reading, open_reading
from registry.connect import open_store
from registry.errors import NotFound

_WAIT_S = 1.0
_COMMIT_EVERY_S = 1.0
_OTHERS_S = 0.1  # between two looks whether others of the group have come to the end


@click.command("consume", short_help="Print the records of a topic.")
@click.argument("topic")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one; repeatable.")
@click.option("--from", "start", type=PlaceParam(), help="earliest (the default), latest, an offset, a time, or -15m.")
@click.option("--to", "stop", type=PlaceParam(), help="Where to end, exclusive; else at the end as it is now.")
@click.option("--follow", is_flag=True, help="At the end, wait for more, until interrupted.")
@click.option("--group", help="Share the topic with others of this group, and commit what is printed.")
@click.option("-n", "--max", "most", type=click.IntRange(min=1), help="End after so many records.")
@click.option("--key-separator", metavar="TEXT", help="Print keys too, with this between key and value.")
@click.option("--skip-lost", is_flag=True, help="Go on at the first record there is if some were deleted meanwhile.")
@click.option(
    "--cache", type=click.Path(path_type=Path, file_okay=False), help="Keep blocks on disk there, up to 1 GiB."
)
@settings_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with key, offset, time and headers.")
def consume_command(
    topic: str,
    partitions: tuple[int, ...],
    start: OffsetSpec | None,
    stop: OffsetSpec | None,
    follow: bool,
    group: str | None,
    most: int | None,
    key_separator: str | None,
    skip_lost: bool,
    cache: Path | None,
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Print the values of TOPIC's records, one a line, each partition in order.

    With a group, what is printed is committed once a second and at the end: after a crash, a second's records may come
    again, and none is left out. Several of these commands with the same group share the partitions among them, and end,
    unless they follow, when the group has everything. --from, --to and --partition choose by hand: nothing is shared.

    \b
    Examples:
      astha consume orders --from -15m --follow
      astha consume orders --group billing --json
      astha consume orders --partition 3 --from 1000 --to 2000
    """
    if follow and stop is not None:
        raise Failure("--follow has no end: leave --to out", Exit.USAGE)
    write = write_json if as_json else write_line(None if key_separator is None else key_separator.encode())
    job = _Job(topic, partitions, start, stop, follow, group, most, "earliest" if skip_lost else None, cache, write)
    with log_to_stderr(), FreezingCollector(), suppress(BrokenPipeError):  # `| head` has seen enough
        asyncio.run(job.run(reload()))


class _Job:
    def __init__(
        self,
        topic: str,
        partitions: Sequence[int],
        start: OffsetSpec | None,
        stop: OffsetSpec | None,
        follow: bool,
        group: str | None,
        most: int | None,
        reset: Origin | None,
        cache: Path | None,
        write: Write,
    ) -> None:
        self._topic, self._partitions, self._start, self._stop = topic, partitions, start, stop
        self._follow, self._group, self._most = follow, group, most
        self._reset, self._cache, self._write = reset, cache, write

    async def run(self, settings: Settings) -> None:
        clock = SystemLoopClock()
        url = settings.registry.url.get_secret_value()
        store = await open_store(url, settings=settings.registry.store, clock=clock)
        try:
            around = context(settings, store, clock)
            disk = None if self._cache is None else (self._cache, 1 << 30)
            async with open_reading(around, settings, follow=self._follow, disk=disk) as reading:
                await self._consume(reading, sys.stdout.buffer)
        except (OffsetTooOld, OffsetBeyondEnd) as error:
            hint = "; --skip-lost goes on there" if isinstance(error, OffsetTooOld) else ""
            raise Failure(f"{error}{hint}", Exit.PROBLEM) from error
        except StorageUnavailable as error:
            raise Failure(settings.concealment()(str(error)), Exit.UNAVAILABLE) from error
        finally:
            await store.close()

    async def _consume(self, reading: Reading, out: IO[bytes]) -> None:
        rows = {row.partition_id: row for row in await reading.store.list_partitions(self._topic)}
        missing = [number for number in self._partitions if number not in rows]
        if missing:
            raise NotFound(f"topic {self._topic!r} has no partition {missing[0]}: it has {len(rows)}")
        numbers = sorted(set(self._partitions) or rows)
        if self._group is not None and not self._partitions and self._start is None and self._stop is None:
            stops = None if self._follow else {number: row.high_watermark for number, row in rows.items()}
            member = Member(reading.ahead, self._group, self._topic, reset=self._reset, stops=stops)
            await self._read(member, reading, out)
            return
        start = await self._starts(reading, numbers)
        for number, offset in start.items():
            if offset > rows[number].high_watermark:
                raise OffsetBeyondEnd(self._topic, number, offset, rows[number].high_watermark)
        stop = "latest" if self._stop is None else self._stop
        stops = None if self._follow else await offsets_at(reading.reader, self._topic, numbers, stop)
        consumer = Consumer(reading.ahead, self._topic, start, group=self._group, reset=self._reset, stops=stops)
        await self._read(consumer, reading, out)

    async def _read(self, consumer: Consumer | Member, reading: Reading, out: IO[bytes]) -> None:
        async with consumer:
            try:
                await self._print(consumer, reading, out)
            except asyncio.CancelledError:  # interrupted: what was printed is done
                await consumer.commit()
                raise
            await consumer.commit()
        if consumer.skipped:
            click.echo(f"{consumer.skipped:,} records had been deleted before they were read", err=True)

    async def _print(self, consumer: Consumer | Member, reading: Reading, out: IO[bytes]) -> None:
        left = self._most
        clock = reading.reader.clock
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
                if not isinstance(consumer, Member) or await consumer.finished():
                    break
                await clock.sleep(_OTHERS_S)
            if clock.monotonic() - committed >= _COMMIT_EVERY_S:
                await consumer.commit()
                committed = clock.monotonic()

    async def _starts(self, reading: Reading, numbers: Sequence[int]) -> dict[int, int]:
        """What was asked for; else where the group was; else the beginning."""
        if self._start is None and self._group is not None:
            return await Groups(reading.store).resume(self._group, self._topic, numbers)
        start = "earliest" if self._start is None else self._start
        return await offsets_at(reading.reader, self._topic, numbers, start)
