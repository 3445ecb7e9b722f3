"""What `astha consume` does: reads a topic, prints its records and commits what it printed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import click

from astha.cli.exit_codes import Exit, Failure
from astha.clock import SystemLoopClock
from astha.settings import Settings
from astha.wiring import context
from components.commands.topics.record_text import Write
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


class ConsumeRun:
    """One run of `astha consume`."""

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
