"""Reading what is cached, against decompressing the same blocks and doing nothing else.

A read answers batches: columns that are checked, found and ready to be wrapped by Arrow. Python objects of each record
are made by readers that want them, and are not part of this.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import lz4.block
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers.context import ComponentContext, LakeSettings
from benchmarks.report import Report, interleaved
from components.lib.lake.storage.objects import Objects
from components.lib.streams.agents import LeaseAgent
from components.lib.streams.format import HEADER_SIZE, read_header
from components.lib.streams.read_context import ReadContext
from components.lib.streams.reader.block_cache import BlockCachePolicy
from components.lib.streams.reader.disk_cache import DiskBlockCache
from components.lib.streams.reader.prefetch import Cursor
from components.lib.streams.writer import SegmentWriter
from registry.connect import open_store
from registry.migrate import migrate

TOPIC = "warm"
APPEND = 16_000  # records of one append, about 3 MiB
_HELD = 32 << 20  # of decoded blocks, where they are to come from disk: less than there is, so that each pass misses


async def warm_reads(report: Report, directory: Path) -> None:
    appends = report.pick(48, 24)
    async with AsyncExitStack() as stack:
        around = await _context(stack, directory)
        stored = await _write(around, appends)
        disk = DiskBlockCache(directory / "cache", 1 << 30)
        from_disk = ReadContext(around, policy=BlockCachePolicy(memory_bytes=_HELD), disk=disk)
        stack.push_async_callback(from_disk.close)
        from_memory = ReadContext(around, policy=BlockCachePolicy(memory_bytes=1 << 30))
        stack.push_async_callback(from_memory.close)
        await _read(from_disk)
        await disk.flush()
        raw_bytes = sum(size for _, size in stored)

        async def decompress(_: int) -> None:
            held: deque[bytes] = deque(maxlen=_HELD * len(stored) // raw_bytes)
            for body, size in stored:
                held.append(lz4.block.decompress(body, uncompressed_size=size))

        async def throw_away(_: int) -> None:
            for body, size in stored:
                lz4.block.decompress(body, uncompressed_size=size)

        contestants: dict[str, Callable[[int], Awaitable[object]]] = {
            "raw": decompress,
            "hot": throw_away,
            "disk": lambda _: _read(from_disk),
            "memory": lambda _: _read(from_memory),
        }
        before = from_disk.cache.counts.storage
        rounds = report.pick(16, 5)
        seconds = await interleaved(rounds, **contestants)
        counts = from_disk.cache.counts
        assert counts.storage == before, "blocks were fetched from storage"
        assert counts.disk >= rounds * len(stored), "blocks were found in memory"
    took = {name: median(samples) for name, samples in seconds.items()}
    gigabytes = {name: raw_bytes / each / 1e9 for name, each in took.items()}
    report.add(
        "warm_read_vs_lz4",
        took["raw"] / took["memory"],
        f"{raw_bytes >> 20} MiB in {len(stored)} blocks: a consumer's reads from the warm cache, which holds decoded "
        f"blocks in memory ({gigabytes['memory']:.1f} GB/s), over LZ4 decompression of the same blocks one after the "
        f"other, of which as much stays in memory as the cache below holds, {_HELD >> 20} MiB "
        f"({gigabytes['raw']:.2f} GB/s)",
        at_least=0.5,
    )
    report.add(
        "warm_read_disk_vs_lz4",
        took["raw"] / took["disk"],
        f"the same from the warm cache on disk, where every block is read from its file, checked and decompressed "
        f"({gigabytes['disk']:.2f} GB/s); {took['hot'] / took['disk']:.2f} if LZ4 throws each away at once, so that "
        f"all happens in the processor's cache ({gigabytes['hot']:.2f} GB/s)",
    )


async def _context(stack: AsyncExitStack, directory: Path) -> ComponentContext:
    url = f"sqlite:///{directory / 'reads.db'}"
    await asyncio.to_thread(migrate, url)
    store = await open_store(url)
    stack.push_async_callback(store.close)
    return ComponentContext(
        store, SystemLoopClock(), SecretStr(url), LakeSettings(warehouse=str(directory / "warehouse"))
    )


async def _write(around: ComponentContext, appends: int) -> list[tuple[bytes, int]]:
    """Returns the stored bodies of all blocks, with their decompressed sizes."""
    dice = random.Random(3)
    await around.store.create_topic(TOPIC, 1)
    async with LeaseAgent(around.store, around.clock) as agent, SegmentWriter(around, agent) as writer:
        for _ in range(appends):
            await writer.append(TOPIC, 0, [_record(dice) for _ in range(APPEND)])
    objects, stored = Objects(around.lake), []
    async for segment in around.store.stream_segments(TOPIC, 0):
        data = memoryview(await objects.get_range(segment.uri, segment.byte_offset, segment.size_bytes))
        at = 0
        while at < len(data):
            header = read_header(data, at)
            stored.append((bytes(data[at + HEADER_SIZE : at + header.size]), header.raw_size))
            at += header.size
    return stored


def _record(dice: random.Random) -> bytes:
    return (
        f'{{"order":{dice.randrange(10**9)},"customer":"customer-{dice.randrange(5_000)}","status":"shipped",'
        f'"amount":{dice.random() * 1000:.2f},"currency":"EUR","note":"{dice.getrandbits(160):x}"}}'
    ).encode()


async def _read(reading: ReadContext) -> None:
    """Reads everything, as a consumer does."""
    cursor = Cursor(reading.prefetcher, TOPIC, 0, 0)
    while (await cursor.next()).batches:
        continue
    await cursor.close()
