"""What `astha produce` does: reads lines as they arrive and appends them to a topic."""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import IO

from astha.cli.exit_codes import Exit, Failure
from astha.clock import SystemLoopClock
from astha.lake_locations import located
from astha.settings import Settings
from astha.wiring import context
from components.commands.topics.record_text import BadLine
from components.lib.lake.storage.objects import StorageError
from components.lib.streams.agents import LeaseAgent
from components.lib.streams.errors import AppendFailed, AppendUnknown, NotLeader
from components.lib.streams.format import NewRecord
from components.lib.streams.writer import Producer, SegmentWriter
from registry.connect import open_store
from registry.errors import NotFound

_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 256 << 20


async def produce(
    settings: Settings,
    topic: str,
    source: Path | None,
    partition: int | None,
    read: Callable[[bytes], tuple[NewRecord, int | None]],
) -> dict[int, int]:
    """Returns the number of appended records per partition."""
    clock = SystemLoopClock()
    url = settings.registry.url.get_secret_value()
    store = await open_store(url, settings=settings.registry.store, clock=clock)
    written: dict[int, int] = defaultdict(int)
    try:
        found = await store.get_topic(topic)
        if found is None:
            raise NotFound(f"topic {topic!r} does not exist: create it with `astha topics create`")
        choose = partition_chooser(found.partition_count, partition)
        component_context = context(await located(settings, store, record=True), store, clock)
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
