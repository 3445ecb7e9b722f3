"""Caches blocks of segments in memory and on disk, in front of storage.

In memory they are decoded, so that a consumer that takes a few records at a time does not decompress the block each
time; on disk they are as stored, checksum included. Concurrent requests for a block share one fetch. Adjacent blocks of
an object are fetched by one request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import structlog

from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.streams.reader.disk_cache import DiskBlockCache

log = structlog.get_logger(__name__)

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_DECODE_IN_THREAD_BYTES = 256 << 10  # smaller blocks are decoded faster than a thread is scheduled
_DISK_READS_PER_THREAD = 8


class BlockAddress(NamedTuple):
    """The byte range of a block in an object. Objects are immutable, so entries never have to be invalidated."""

    uri: str
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    def __str__(self) -> str:
        return f"{self.uri} bytes {self.start}..{self.end - 1}"


class RangeReader(Protocol):
    async def get_range(self, uri: str, start: int, length: int) -> bytes: ...


class BlockDecoder(Protocol[V_co]):
    """Returns the decoded block and its size in memory. Raises if the bytes are damaged."""

    def __call__(self, address: BlockAddress, data: memoryview) -> tuple[V_co, int]: ...


@dataclass(frozen=True, slots=True)
class BlockCachePolicy:
    memory_bytes: int = 256 << 20  # of decoded blocks
    requests: int = 16  # concurrent requests to storage, for waiting readers
    prefetch_requests: int = 4  # and for prefetching
    request_bytes: int = 8 << 20  # per request, unless a block is larger


@dataclass(slots=True)
class BlockCacheCounts:
    """`memory`, `shared` and `missed` count blocks that readers requested; `disk` and `storage` include prefetched
    ones.
    """

    memory: int = 0
    shared: int = 0  # a fetch was in progress, or prefetched
    missed: int = 0  # fetched from disk or storage for the reader
    disk: int = 0
    storage: int = 0
    requests: int = 0
    evicted: int = 0
    corrupt: int = 0

    @property
    def hit_rate(self) -> float:
        """The rate of requested blocks that were in memory or being fetched; 0.0 before the first."""
        hits = self.memory + self.shared
        return hits / (hits + self.missed) if hits or self.missed else 0.0


class BlockCache(Generic[V]):
    """For one event loop. Cancelling a caller does not cancel its fetches: other callers and the cache use them."""

    def __init__(
        self,
        objects: RangeReader,
        decode: BlockDecoder[V],
        policy: BlockCachePolicy | None = None,
        disk: DiskBlockCache | None = None,
    ) -> None:
        self.policy = policy or BlockCachePolicy()
        self.counts = BlockCacheCounts()
        self._objects = objects
        self._decode = decode
        self._disk = disk
        self._entries: OrderedDict[BlockAddress, tuple[V, int]] = OrderedDict()
        self._size = 0
        self._pending: dict[BlockAddress, asyncio.Future[V]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(self.policy.requests)
        self._prefetch_slots = asyncio.Semaphore(self.policy.prefetch_requests)

    @property
    def size_bytes(self) -> int:
        return self._size

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, address: BlockAddress) -> bool:
        """Whether the block is in memory or being fetched."""
        return address in self._entries or address in self._pending

    async def get(self, addresses: Sequence[BlockAddress]) -> list[V]:
        """Returns blocks in order up to the first that fails; raises if that is the first one.

        So records before a corrupt block are returned, and the next call raises its error.
        """
        found: list[V] = []
        for number, block in enumerate(self._lookup(addresses)):
            try:
                found.append(await asyncio.shield(block) if isinstance(block, asyncio.Future) else block)
            except Exception:
                if not number:
                    raise
                break
        return found

    def prefetch(self, addresses: Sequence[BlockAddress]) -> Coroutine[None, None, None]:
        """Starts to fetch the blocks at once; awaiting the result waits for them. Errors are left to the reader that
        requests them.
        """
        futures = [block for block in self._lookup(addresses, prefetching=True) if isinstance(block, asyncio.Future)]
        return _wait_for_all(futures)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for address, future in list(self._pending.items()):
            self._resolve(address, future, StorageUnavailable(f"{address}: the cache was closed during the fetch"))
        if self._disk is not None:
            await self._disk.close()

    def _lookup(self, addresses: Sequence[BlockAddress], *, prefetching: bool = False) -> list[V | asyncio.Future[V]]:
        blocks: list[V | asyncio.Future[V]] = []
        missing: dict[BlockAddress, asyncio.Future[V]] = {}
        for address in addresses:
            entry = self._entries.get(address)
            if entry is not None:
                self._entries.move_to_end(address)
                self.counts.memory += not prefetching
                blocks.append(entry[0])
                continue
            future = self._pending.get(address)
            if future is None:
                future = self._pending[address] = asyncio.get_running_loop().create_future()
                future.add_done_callback(_mark_retrieved)
                missing[address] = future
                self.counts.missed += not prefetching
            else:
                self.counts.shared += not prefetching
            blocks.append(future)
        if missing:
            task = asyncio.create_task(
                self._fetch_missing(missing, self._prefetch_slots if prefetching else self._slots),
                name="segment blocks",
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return blocks

    async def _fetch_missing(self, wanted: dict[BlockAddress, asyncio.Future[V]], slots: asyncio.Semaphore) -> None:
        """Resolves only its own futures: after a failure another caller may have started a new fetch of the block."""
        try:
            if self._disk is not None:
                await self._fetch_from_disk(self._disk, wanted)
            missing = [address for address, future in wanted.items() if not future.done()]
            async with asyncio.TaskGroup() as group:
                for run in adjacent_runs(missing, self.policy.request_bytes):
                    group.create_task(self._fetch_run(run, wanted, slots))
        except Exception as error:  # a bug: readers must not wait forever
            for address, future in wanted.items():
                if not future.done():
                    self._resolve(address, future, error)

    async def _fetch_from_disk(self, disk: DiskBlockCache, wanted: dict[BlockAddress, asyncio.Future[V]]) -> None:
        """Reads a few per thread, so that the first block does not wait for the last."""
        addresses = list(wanted)
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(addresses), _DISK_READS_PER_THREAD):
                group.create_task(self._read_from_disk(disk, addresses[start : start + _DISK_READS_PER_THREAD], wanted))

    async def _read_from_disk(
        self, disk: DiskBlockCache, addresses: Sequence[BlockAddress], wanted: dict[BlockAddress, asyncio.Future[V]]
    ) -> None:
        """Damaged blocks stay unresolved and are fetched from storage."""
        found = await disk.read(addresses, self._decode)
        for address, outcome in found.items():
            if isinstance(outcome, Exception):
                self.counts.corrupt += 1
                log.warning(
                    "damaged block in the disk cache, fetching it again", block=str(address), error=str(outcome)
                )
                disk.drop(address)
            else:
                self.counts.disk += 1
                self._insert(address, *outcome)
                self._resolve(address, wanted[address], outcome[0])

    async def _fetch_run(
        self, run: Sequence[BlockAddress], wanted: dict[BlockAddress, asyncio.Future[V]], slots: asyncio.Semaphore
    ) -> None:
        start = run[0].start
        try:
            async with slots:
                self.counts.requests += 1
                data = memoryview(await self._objects.get_range(run[0].uri, start, run[-1].end - start))
        except Exception as error:
            for address in run:
                self._resolve(address, wanted[address], error)
            return
        self.counts.storage += len(run)
        for address in run:
            part = data[address.start - start : address.end - start]
            try:
                await self._decode_and_insert(address, part, wanted[address])
            except Exception as error:
                self.counts.corrupt += 1
                self._resolve(address, wanted[address], error)
            else:
                if self._disk is not None:
                    self._disk.write(address, bytes(part))

    async def _decode_and_insert(self, address: BlockAddress, data: memoryview, future: asyncio.Future[V]) -> None:
        if len(data) >= _DECODE_IN_THREAD_BYTES:
            value, size = await asyncio.to_thread(self._decode, address, data)
        else:
            value, size = self._decode(address, data)
        self._insert(address, value, size)
        self._resolve(address, future, value)

    def _resolve(self, address: BlockAddress, future: asyncio.Future[V], outcome: V | Exception) -> None:
        del self._pending[address]
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _insert(self, address: BlockAddress, value: V, size: int) -> None:
        if size > self.policy.memory_bytes:
            return
        self._entries[address] = (value, size)
        self._size += size
        while self._size > self.policy.memory_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self._size -= freed
            self.counts.evicted += 1


def adjacent_runs(addresses: Sequence[BlockAddress], max_bytes: int) -> Iterator[list[BlockAddress]]:
    """Groups adjacent blocks of an object, up to `max_bytes` per group."""
    run: list[BlockAddress] = []
    for address in sorted(addresses):
        if run and (
            address.uri != run[-1].uri or address.start != run[-1].end or address.end - run[0].start > max_bytes
        ):
            yield run
            run = []
        run.append(address)
    if run:
        yield run


async def _wait_for_all(futures: Sequence[asyncio.Future[V]]) -> None:
    if futures:
        await asyncio.wait(futures)


def _mark_retrieved(future: asyncio.Future[V]) -> None:
    """Prevents asyncio's warning for failed futures without a waiter."""
    if not future.cancelled():
        future.exception()
