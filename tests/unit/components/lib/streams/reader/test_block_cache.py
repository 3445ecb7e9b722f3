"""The requests of a block cache to storage, and its contents."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.streams.reader.block_cache import BlockAddress, BlockCache, BlockCachePolicy, adjacent_runs
from components.lib.streams.reader.disk_cache import DiskBlockCache
from tests.doubles.ranged_objects import RangedObjects

URI = "s3://bucket/object"
SIZE = 100
BLOCKS = [BlockAddress(URI, number * SIZE, SIZE) for number in range(10)]


class Damaged(Exception):
    pass


def decode(address: BlockAddress, data: memoryview) -> tuple[int, int]:
    """A block is its number and a checksum of that."""
    number = bytes(data[4:])
    if zlib.crc32(number) != int.from_bytes(data[:4], "little"):
        raise Damaged(str(address))
    return int(number), len(data)


def encode(number: int) -> bytes:
    body = b"%096d" % number
    return zlib.crc32(body).to_bytes(4, "little") + body


@pytest.fixture
def objects() -> RangedObjects:
    made = RangedObjects()
    made.contents[URI] = b"".join(map(encode, range(10)))
    return made


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[DiskBlockCache]:
    made = DiskBlockCache(tmp_path, 1 << 20)
    yield made
    await made.close()


async def test_adjacent_blocks_are_one_request_and_cached_afterwards(objects: RangedObjects) -> None:
    cache = BlockCache(objects, decode)
    assert await cache.get([BLOCKS[2], BLOCKS[3], BLOCKS[5]]) == [2, 3, 5]
    assert sorted(objects.requests) == [(URI, 200, 200), (URI, 500, 100)]
    assert await cache.get(BLOCKS[1:7]) == [1, 2, 3, 4, 5, 6]
    assert sorted(objects.requests[2:]) == [(URI, 100, 100), (URI, 400, 100), (URI, 600, 100)]
    assert (cache.counts.memory, cache.counts.storage, cache.counts.requests) == (3, 6, 5)
    await cache.close()


def test_a_request_is_bounded() -> None:
    assert [len(run) for run in adjacent_runs(BLOCKS, 3 * SIZE)] == [3, 3, 3, 1]
    assert [len(run) for run in adjacent_runs(BLOCKS[:2], SIZE // 2)] == [1, 1]
    assert [run[0].uri for run in adjacent_runs([BLOCKS[0], BlockAddress("s3://bucket/other", 100, 100)], 1 << 20)] == [
        URI,
        "s3://bucket/other",
    ]


async def test_many_readers_of_a_block_share_one_request(objects: RangedObjects) -> None:
    cache = BlockCache(objects, decode)
    objects.gate.clear()
    readers = [asyncio.create_task(cache.get(BLOCKS[:2])) for _ in range(20)]
    await asyncio.sleep(0)
    readers[0].cancel()  # the one that started the fetch
    objects.gate.set()
    answers = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [[0, 1]] * 19
    assert len(objects.requests) == 1
    await cache.close()


async def test_memory_is_bounded_and_evicts_the_least_recently_read(objects: RangedObjects) -> None:
    cache = BlockCache(objects, decode, BlockCachePolicy(memory_bytes=3 * SIZE))
    await cache.get(BLOCKS[:3])
    await cache.get(BLOCKS[:1])
    await cache.get(BLOCKS[3:4])
    assert cache.size_bytes == 3 * SIZE
    assert [block in cache for block in BLOCKS[:4]] == [True, False, True, True]
    assert await cache.get(BLOCKS) == list(range(10))  # more than fits is still returned
    assert (len(cache), cache.size_bytes) == (3, 3 * SIZE)
    await cache.close()


async def test_blocks_before_a_damaged_one_are_returned(objects: RangedObjects) -> None:
    objects.damage(URI, 250)
    cache = BlockCache(objects, decode)
    assert await cache.get(BLOCKS[:4]) == [0, 1]
    with pytest.raises(Damaged, match=r"bytes 200\.\.299"):
        await cache.get(BLOCKS[2:4])
    assert await cache.get(BLOCKS[3:5]) == [3, 4]
    await cache.close()


async def test_a_failed_request_is_not_cached(objects: RangedObjects) -> None:
    objects.failures = [StorageUnavailable("gone for a moment")]
    cache = BlockCache(objects, decode)
    with pytest.raises(StorageUnavailable):
        await cache.get(BLOCKS[:1])
    assert await cache.get(BLOCKS[:1]) == [0]
    await cache.close()


async def test_closing_the_cache_fails_waiting_readers(objects: RangedObjects) -> None:
    cache = BlockCache(objects, decode)
    objects.gate.clear()
    reader = asyncio.create_task(cache.get(BLOCKS[:1]))
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        await reader


async def test_the_disk_cache_survives_a_restart(objects: RangedObjects, tmp_path: Path) -> None:
    first = BlockCache(objects, decode, disk=DiskBlockCache(tmp_path, 1 << 20))
    await first.get(BLOCKS)
    await first.close()
    objects.requests.clear()
    second = BlockCache(objects, decode, disk=DiskBlockCache(tmp_path, 1 << 20))
    assert await second.get(BLOCKS) == list(range(10))
    assert (objects.requests, second.counts.disk) == ([], 10)
    await second.close()


@pytest.mark.parametrize("how", ["bit", "short", "foreign", "gone"])
async def test_a_damaged_file_is_detected_and_fetched_again(
    objects: RangedObjects, disk: DiskBlockCache, how: str
) -> None:
    writer = BlockCache(objects, decode, disk=disk)
    await writer.get(BLOCKS[:2])
    await disk.flush()
    one, other = sorted(disk.directory.glob("??/*"))
    data = one.read_bytes()
    match how:
        case "bit":
            one.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "short":
            one.write_bytes(data[:-10])
        case "foreign":
            one.write_bytes(other.read_bytes())
        case _:
            one.unlink()
    objects.requests.clear()
    reader = BlockCache(objects, decode, disk=disk)
    assert await reader.get(BLOCKS[:2]) == [0, 1]
    assert len(objects.requests) == 1
    await disk.flush()
    assert len(disk) == 2
    assert {path.read_bytes() for path in disk.directory.glob("??/*")} == {data, other.read_bytes()}


async def test_the_disk_cache_is_bounded(objects: RangedObjects, tmp_path: Path) -> None:
    disk = DiskBlockCache(tmp_path, 3 * 4096)
    cache = BlockCache(objects, decode, disk=disk)
    for block in BLOCKS:
        await cache.get([block])
        await disk.flush()
    assert (len(disk), disk.size_bytes) == (3, 3 * 4096)
    assert len(list(disk.directory.glob("??/*"))) == 3
    assert sorted(await disk.read(BLOCKS, lambda _, data: bytes(data))) == BLOCKS[7:]
    await cache.close()
    smaller = DiskBlockCache(tmp_path, 4096)  # a setting that was lowered
    assert len(smaller) == 1
    await smaller.close()


async def test_a_failing_disk_does_not_fail_a_reader(objects: RangedObjects, disk: DiskBlockCache) -> None:
    cache = BlockCache(objects, decode, disk=disk)
    disk.directory.joinpath("lock").unlink()
    disk.directory.rmdir()  # like a full disk: nothing can be written
    assert await cache.get(BLOCKS[:2]) == [0, 1]
    await disk.flush()
    assert (disk.failures, len(disk)) == (2, 0)


async def test_two_processes_do_not_share_a_directory(tmp_path: Path) -> None:
    one, other = DiskBlockCache(tmp_path, 1 << 20), DiskBlockCache(tmp_path, 1 << 20)
    assert one.directory != other.directory
    await one.close()
    third = DiskBlockCache(tmp_path, 1 << 20)
    assert third.directory == one.directory
    await other.close()
    await third.close()


async def test_prefetched_blocks_are_cached_and_failures_left_to_the_reader(objects: RangedObjects) -> None:
    objects.damage(URI, 150)
    cache = BlockCache(objects, decode)
    await cache.prefetch(BLOCKS[:3])
    objects.requests.clear()
    assert await cache.get(BLOCKS[:1]) == [0]
    assert objects.requests == []
    with pytest.raises(Damaged):
        await cache.get(BLOCKS[1:2])
    await cache.close()
