"""An agent with its writer in a process of its own, which does what the benchmark tells it."""

from __future__ import annotations

import asyncio
import multiprocessing
from array import array
from multiprocessing.connection import Connection
from time import perf_counter

import msgspec
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.gc_tuning import FreezingCollector
from astha.subscribers.context import ComponentContext, LakeSettings
from benchmarks.processes import memory_mb
from benchmarks.segments.appends import Timed, offer
from components.lib.streams.agents import AgentSettings, LeaseAgent
from components.lib.streams.errors import NotLeader
from components.lib.streams.writer import SegmentWriter
from registry.connect import open_store

LEASE_S = 10.0
_LIMIT_S = 900
_RETRY_S = 0.25


class Acquire(msgspec.Struct, tag=True):
    """Every partition of the range. Repeated while another agent holds them."""

    topic: str
    partitions: range


class Offer(msgspec.Struct, tag=True):
    topic: str
    partitions: range
    batches: int  # appends to each partition
    rate: float  # appends per second


class Acquired(msgspec.Struct):
    waited_s: float  # until the first partition was free
    seconds: float  # from then on, for all of them


class Offered(msgspec.Struct):
    """``late_s`` and ``registering_s`` are arrays of doubles."""

    late_s: bytes
    registering_s: bytes
    seconds: float
    objects: int
    memory_mb: float


class AgentProcess:
    def __init__(self, url: str, lake: LakeSettings, name: str) -> None:
        processes = multiprocessing.get_context("spawn")
        self._words, theirs = processes.Pipe()
        self._process = processes.Process(target=_serve, args=(url, lake, name, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> float:
        """Waits until the agent is registered. Returns the memory of its process in MB."""
        answer = self._answer()
        assert isinstance(answer, float)
        return answer

    def tell(self, task: Acquire | Offer) -> None:
        self._words.send(task)

    def acquired(self) -> Acquired:
        return msgspec.convert(self._answer(), Acquired)

    def offered(self) -> Offered:
        return msgspec.convert(self._answer(), Offered)

    def memory_mb(self) -> float:
        return memory_mb(self._process.pid or 0)[0]

    def kill(self) -> None:
        """With SIGKILL."""
        self._process.kill()
        self._process.join()

    def _answer(self) -> object:
        if not self._words.poll(_LIMIT_S):
            raise SystemExit(f"an agent says nothing for {_LIMIT_S} s")
        try:
            return self._words.recv()
        except EOFError:
            raise SystemExit("an agent has died") from None


def _serve(url: str, lake: LakeSettings, name: str, parent: Connection) -> None:
    with FreezingCollector():
        asyncio.run(_work(url, lake, name, parent))


async def _work(url: str, lake: LakeSettings, name: str, parent: Connection) -> None:
    store = Timed(await open_store(url))
    around = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)
    settings = AgentSettings(lease_s=LEASE_S, renew_every_s=LEASE_S / 3)
    async with (
        LeaseAgent(store, around.clock, settings, agent_id=name) as agent,
        SegmentWriter(around, agent) as writer,
    ):
        parent.send(memory_mb()[0])
        while True:
            task = await asyncio.to_thread(parent.recv)
            if isinstance(task, Acquire):
                parent.send(msgspec.to_builtins(await _acquire(agent, task)))
            else:
                parent.send(msgspec.structs.asdict(await _offer(writer, store, task)))


async def _acquire(agent: LeaseAgent, task: Acquire) -> Acquired:
    begun = perf_counter()
    while True:
        started = perf_counter()
        try:
            await agent.acquire(task.topic, task.partitions[0])
            break
        except NotLeader:
            await asyncio.sleep(_RETRY_S)
    await asyncio.gather(*(agent.acquire(task.topic, number) for number in task.partitions))
    return Acquired(started - begun, perf_counter() - started)


async def _offer(writer: SegmentWriter, store: Timed, task: Offer) -> Offered:
    store.seconds, objects = array("d"), writer.statistics.objects
    done = await offer(writer, task.topic, task.partitions, task.batches, task.rate)
    objects = writer.statistics.objects - objects
    return Offered(done.late_s.tobytes(), store.seconds.tobytes(), done.seconds, objects, memory_mb()[0])
