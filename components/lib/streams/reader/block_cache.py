"""Blocks of segments: from memory, else from disk, else from storage.

In memory they are decoded, so that a consumer who takes a few records at a time does not decompress the block each
time; on disk they are as they are in storage, checksum included. Whoever asks for a block that somebody is
already fetching waits for that one. Neighbours in an object are fetched by one request.
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

_IN_A_THREAD = 256 << 10  # what is smaller is decoded faster than a thread takes over
_BY_ONE_THREAD = 8  # blocks from disk


class BlockAddress(NamedTuple):
    """Where a block is: a byte range of an object. Objects never change, so neither does what is there."""

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
    """What is in the bytes, and how many bytes of memory that takes. Raises if they are not what they should be."""

    def __call__(self, address: BlockAddress, data: memoryview) -> tuple[V_co, int]: ...


@dataclass(frozen=True, slots=True)
class BlockCachePolicy:
    memory_bytes: int = 256 << 20  # of decoded blocks
    requests: int = 16  # to storage at the same time, for those who wait
    requests_ahead: int = 4  # and for those who don't yet
    request_bytes: int = 8 << 20  # at most by one of them, unless a block is larger


@dataclass(slots=True)
class BlockCacheCounts:
    """Blocks asked for, by where they were found; requests to storage; what memory pushed out; what was not right.

    `memory`, `shared` and `missed` are what readers asked for; `disk` and `storage` have what was fetched ahead, too.
    """

    memory: int = 0
    shared: int = 0  # somebody was fetching it already, or had it fetched ahead
    missed: int = 0  # somebody had to wait for disk or storage from the beginning
    disk: int = 0
    storage: int = 0
    requests: int = 0
    evicted: int = 0
    corrupt: int = 0

    @property
    def hit_rate(self) -> float:
        """Of the blocks that readers asked for: in memory, or on their way there; 0.0 before the first."""
        hits = self.memory + self.shared
        return hits / (hits + self.missed) if hits or self.missed else 0.0


class BlockCache(Generic[V]):
    """For one event loop. Cancelling a caller leaves what it has begun to the others, and to the cache."""

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
        self._held: OrderedDict[BlockAddress, tuple[V, int]] = OrderedDict()
        self._size = 0
        self._flights: dict[BlockAddress, asyncio.Future[V]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(self.policy.requests)
        self._slots_ahead = asyncio.Semaphore(self.policy.requests_ahead)

    @property
    def size_bytes(self) -> int:
        return self._size

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, address: BlockAddress) -> bool:
        """In memory, or on its way there."""
        return address in self._held or address in self._flights

    async def get(self, addresses: Sequence[BlockAddress]) -> list[V]:
        """In order, up to the first that can't be had; raises if that is the first of all.

        So what comes before a corrupt block is read, and the next call says what is wrong.
        """
        found: list[V] = []
        for place, block in enumerate(self._begin(addresses)):
            try:
                found.append(await asyncio.shield(block) if isinstance(block, asyncio.Future) else block)
            except Exception:
                if not place:
                    raise
                break
        return found

    def prefetch(self, addresses: Sequence[BlockAddress]) -> Coroutine[None, None, None]:
        """Bring them to memory: they are on their way when this returns, and there when it has been awaited. What goes
        wrong is found again by whoever asks for them.
        """
        flights = [block for block in self._begin(addresses, ahead=True) if isinstance(block, asyncio.Future)]
        return _settled(flights)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for address, flight in list(self._flights.items()):
            self._end(address, flight, StorageUnavailable(f"{address}: the cache was closed before it came"))
        if self._disk is not None:
            await self._disk.close()

    def _begin(self, addresses: Sequence[BlockAddress], *, ahead: bool = False) -> list[V | asyncio.Future[V]]:
        blocks: list[V | asyncio.Future[V]] = []
        missing: dict[BlockAddress, asyncio.Future[V]] = {}
        for address in addresses:
            held = self._held.get(address)
            if held is not None:
                self._held.move_to_end(address)
                self.counts.memory += not ahead
                blocks.append(held[0])
                continue
            flight = self._flights.get(address)
            if flight is None:
                flight = self._flights[address] = asyncio.get_running_loop().create_future()
                flight.add_done_callback(_seen)
                missing[address] = flight
                self.counts.missed += not ahead
            else:
                self.counts.shared += not ahead
            blocks.append(flight)
        if missing:
            task = asyncio.create_task(
                self._fill(missing, self._slots_ahead if ahead else self._slots), name="segment blocks"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return blocks

    async def _fill(self, mine: dict[BlockAddress, asyncio.Future[V]], slots: asyncio.Semaphore) -> None:
        """Others may fetch one of them anew as soon as it has failed here: only our own flights are ended."""
        try:
            if self._disk is not None:
                await self._from_disk(self._disk, mine)
            missing = [address for address, flight in mine.items() if not flight.done()]
            async with asyncio.TaskGroup() as group:
                for run in runs(missing, self.policy.request_bytes):
                    group.create_task(self._from_storage(run, mine, slots))
        except Exception as error:  # a fault of ours: nobody waits for ever because of it
            for address, flight in mine.items():
                if not flight.done():
                    self._end(address, flight, error)

    async def _from_disk(self, disk: DiskBlockCache, mine: dict[BlockAddress, asyncio.Future[V]]) -> None:
        """A few at a time, so that the first need not wait for the last."""
        addresses = list(mine)
        async with asyncio.TaskGroup() as group:
            for start in range(0, len(addresses), _BY_ONE_THREAD):
                group.create_task(self._some_from_disk(disk, addresses[start : start + _BY_ONE_THREAD], mine))

    async def _some_from_disk(
        self, disk: DiskBlockCache, addresses: Sequence[BlockAddress], mine: dict[BlockAddress, asyncio.Future[V]]
    ) -> None:
        """What is damaged stays missing."""
        found = await disk.read(addresses, self._decode)
        for address, outcome in found.items():
            if isinstance(outcome, Exception):
                self.counts.corrupt += 1
                log.warning("a cached block is damaged and is fetched again", block=str(address), error=str(outcome))
                disk.drop(address)
            else:
                self.counts.disk += 1
                self._keep(address, *outcome)
                self._end(address, mine[address], outcome[0])

    async def _from_storage(
        self, run: Sequence[BlockAddress], mine: dict[BlockAddress, asyncio.Future[V]], slots: asyncio.Semaphore
    ) -> None:
        start = run[0].start
        try:
            async with slots:
                self.counts.requests += 1
                data = memoryview(await self._objects.get_range(run[0].uri, start, run[-1].end - start))
        except Exception as error:
            for address in run:
                self._end(address, mine[address], error)
            return
        self.counts.storage += len(run)
        for address in run:
            part = data[address.start - start : address.end - start]
            try:
                await self._land(address, part, mine[address])
            except Exception as error:
                self.counts.corrupt += 1
                self._end(address, mine[address], error)
            else:
                if self._disk is not None:
                    self._disk.write(address, bytes(part))

    async def _land(self, address: BlockAddress, data: memoryview, flight: asyncio.Future[V]) -> None:
        if len(data) >= _IN_A_THREAD:
            value, size = await asyncio.to_thread(self._decode, address, data)
        else:
            value, size = self._decode(address, data)
        self._keep(address, value, size)
        self._end(address, flight, value)

    def _end(self, address: BlockAddress, flight: asyncio.Future[V], outcome: V | Exception) -> None:
        del self._flights[address]
        if isinstance(outcome, Exception):
            flight.set_exception(outcome)
        else:
            flight.set_result(outcome)

    def _keep(self, address: BlockAddress, value: V, size: int) -> None:
        if size > self.policy.memory_bytes:
            return
        self._held[address] = (value, size)
        self._size += size
        while self._size > self.policy.memory_bytes:
            _, (_, gone) = self._held.popitem(last=False)
            self._size -= gone
            self.counts.evicted += 1


def runs(addresses: Sequence[BlockAddress], most_bytes: int) -> Iterator[list[BlockAddress]]:
    """Neighbours together, as far as one request may reach."""
    run: list[BlockAddress] = []
    for address in sorted(addresses):
        if run and (
            address.uri != run[-1].uri or address.start != run[-1].end or address.end - run[0].start > most_bytes
        ):
            yield run
            run = []
        run.append(address)
    if run:
        yield run


async def _settled(flights: Sequence[asyncio.Future[V]]) -> None:
    if flights:
        await asyncio.wait(flights)


def _seen(flight: asyncio.Future[V]) -> None:
    """A failure that nobody has waited for is no secret, and no reason to complain."""
    if not flight.cancelled():
        flight.exception()
