"""The segment store at work: agents append, one of them is killed, and a consumer group reads.

The agents are processes of their own. The agent that takes over repeats the unacknowledged appends of the killed one,
under the same numbers: in the end every record is there once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
import structlog
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.sources.factory import open_live_source
from astha.sources.postgres.source import PostgresSourceSettings
from astha.sources.sqlite import TailSettings
from astha.subscribers import ComponentContext, LakeSettings
from components.commands.demo.appending import LEASE_S, Line, Order
from components.commands.demo.daemon import PATIENCE_S, until
from components.commands.demo.stage import Advance, Stage
from components.lib.streams.feed_updater import FeedUpdater
from components.lib.streams.group_consumer import GroupConsumer
from components.lib.streams.offsets import GroupOffsets
from components.lib.streams.read_context import ReadContext
from registry.connect import open_store
from registry.migrate import migrate

TOPIC, GROUP = "clicks", "dashboard"
AGENTS, EACH = 3, 2  # agents, and partitions that each of them writes
RECORDS, BATCH = 8_000, 200  # of a partition; in an append
TOTAL = AGENTS * EACH * RECORDS
_WATCH_S = 1.0


@dataclass(frozen=True)
class StreamsOutcome:
    acknowledged: int
    read: int
    right: bool
    segments: int
    objects: int
    takeovers: int
    shared: list[int]
    woken_ms: float
    lag: int

    def cells(self) -> dict[str, str]:
        return {
            "records acknowledged": f"{self.acknowledged:,}",
            "segments, objects": f"{self.segments:,}, {self.objects:,}",
            "partitions taken over from the killed agent": f"{self.takeovers}",
            "records read by each consumer": " + ".join(f"{count:,}" for count in self.shared),
            "append to consumer, median": f"{self.woken_ms:.0f} ms",
            "lag of the group at the end": f"{self.lag:,}",
            "every record once, in order, unchanged": "yes" if self.right and self.read == TOTAL else "NO",
        }


class Agents:
    """Processes that append, and the appends that they reported as durable."""

    def __init__(self, url: str, warehouse: Path, advance: Advance) -> None:
        self._url, self._warehouse, self._advance = url, warehouse, advance
        self._idle: list[asyncio.subprocess.Process] = []
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._listening: dict[int, asyncio.Task[None]] = {}
        self.done = dict.fromkeys(range(AGENTS * EACH), 0)

    @property
    def acknowledged(self) -> int:
        return sum(self.done.values())

    async def prepare(self) -> None:
        """Starts a process that waits for its task, so that the start of Python is not part of the demo."""
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "components.commands.demo.appending")
        self._idle.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    def start(self, number: int) -> None:
        mine = {partition: self.done[partition] for partition in range(number * EACH, (number + 1) * EACH)}
        order = Order(self._url, str(self._warehouse), TOPIC, f"producer-{number}", mine, RECORDS, BATCH)
        process = self._idle.pop()
        assert process.stdin is not None  # noqa: S101  (a pipe)
        process.stdin.write(msgspec.json.encode(order))
        process.stdin.close()
        self._processes[number] = process
        self._listening[number] = asyncio.create_task(self._listen(process))

    async def kill(self, number: int) -> None:
        """Kills it with SIGKILL, so it releases nothing. What it reported before still counts."""
        process = self._processes.pop(number)
        process.kill()
        await process.wait()
        await self._listening.pop(number)

    async def close(self) -> None:
        for process in (*self._idle, *self._processes.values()):
            if process.returncode is None:
                process.kill()
            await process.wait()
        await asyncio.gather(*self._listening.values())

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101  (a pipe)
        async for text in process.stdout:
            line = msgspec.json.decode(text, type=Line)
            self._advance(line.done - self.done[line.partition])
            self.done[line.partition] = line.done


class Viewer:
    """A consumer of the group, which checks that each record carries its own offset.

    ``seen`` holds what the whole group has read.
    """

    def __init__(self, member: GroupConsumer, clock: SystemLoopClock, seen: set[tuple[int, int]]) -> None:
        self.member = member
        self._clock = clock
        self._seen = seen
        self.read = 0
        self.right = True
        self.waits_ms: list[int] = []

    async def view(self) -> None:
        while True:
            polled = await self.member.poll(wait_s=1.0)
            if polled is None:
                continue
            now = self._clock.now_ms()
            for record in polled.records:
                self.right &= record.value == b"%d/%d" % (polled.partition_id, record.offset)
            self.waits_ms.append(now - record.timestamp)
            self.read += len(polled.records)
            await self.member.commit()
            self._seen.update((polled.partition_id, record.offset) for record in polled.records)


async def show(url: str, warehouse: Path, stage: Stage) -> StreamsOutcome:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    await asyncio.to_thread(migrate, url)
    clock = SystemLoopClock()
    store = await open_store(url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        around = ComponentContext(store, clock, SecretStr(url), LakeSettings(warehouse=str(warehouse)))
        await store.create_topic(TOPIC, AGENTS * EACH)
        reading = ReadContext(around)
        stack.push_async_callback(reading.close)
        live_source = open_live_source(url, PostgresSourceSettings(), TailSettings(), clock)
        await stack.enter_async_context(FeedUpdater(live_source, reading.change_feed, clock))
        return await _act(around, reading, url, warehouse, stage)


async def _act(
    around: ComponentContext, reading: ReadContext, url: str, warehouse: Path, stage: Stage
) -> StreamsOutcome:
    clock, store = SystemLoopClock(), around.store
    seen: set[tuple[int, int]] = set()
    viewers = [
        Viewer(GroupConsumer(reading.prefetcher, GROUP, TOPIC, lease_s=2 * LEASE_S), clock, seen) for _ in range(2)
    ]
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_watch(around, stage))]
        with stage.working(f"records of {AGENTS} agents", TOTAL) as advance:
            agents = Agents(url, warehouse, advance)
            stack.push_async_callback(agents.close)
            for _ in range(AGENTS + 1):
                await agents.prepare()
            for number in range(AGENTS - 1):
                agents.start(number)
            await stack.enter_async_context(viewers[0].member)
            running.append(tasks.create_task(viewers[0].view()))
            await until(lambda: agents.done[0] >= RECORDS // 3)
            await agents.kill(0)
            stage.say(f"agent 0 is killed; another one waits for its leases to run out ({LEASE_S:.0f} s)")
            agents.start(0)
            await stack.enter_async_context(viewers[1].member)
            running.append(tasks.create_task(viewers[1].view()))
            await until(lambda: bool(viewers[1].member.partitions))
            stage.say(f"a second consumer has joined: partitions {viewers[1].member.partitions} are its own")
            agents.start(AGENTS - 1)  # now, so that there is something left for both
            await until(lambda: agents.acknowledged == TOTAL)
        stage.say("everything is durable; the consumers read to the end")
        await until(lambda: len(seen) >= TOTAL)
        for task in running:
            task.cancel()
    rows = [row for number in range(AGENTS * EACH) async for row in store.stream_segments(TOPIC, number)]
    epochs = [lease.epoch for lease in await store.list_partition_leases(topic=TOPIC)]
    return StreamsOutcome(
        agents.acknowledged, len(seen), all(viewer.right for viewer in viewers),
        len(rows), len({row.uri for row in rows}), sum(epoch > 1 for epoch in epochs),
        [viewer.read for viewer in viewers], median(wait for viewer in viewers for wait in viewer.waits_ms),
        sum(lag.lag for lag in await GroupOffsets(store).lag(GROUP)),
    )  # fmt: skip


async def _watch(around: ComponentContext, stage: Stage) -> None:
    """Prints the group's lag, as `astha groups lag` does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await asyncio.sleep(_WATCH_S)
            lags = await GroupOffsets(around.store).lag(GROUP, TOPIC)
            ends = sum(lag.end for lag in lags)
            if ends:
                stage.say(f"{GROUP}: {ends:,} records written, {sum(lag.lag for lag in lags):,} not yet read")
