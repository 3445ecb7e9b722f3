"""The subscriber: feeds this process's caches, wakes its readers, and keeps the log in shape in the background.

No delivery waits for storage. What a stop or a crash interrupts is found again: rows are counted anew at the start,
and objects by their intents.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import structlog

from astha.clock_guard import may_delete_by_age
from astha.events import Event, Operation
from astha.subscribers import ComponentContext, Metric, Work
from components.lib.lake.registration.upload_intents import warn_if_not_cleaned
from components.lib.lake.storage.locations import canonical, join
from components.lib.streams.read_context import Reading
from components.lib.streams.reader.block_cache import CachePolicy
from components.lib.streams.reader.disk_blocks import DiskBlocks
from components.segment_store.maintenance.merge_policy import SmallSegments
from components.segment_store.maintenance.merging import Merger
from components.segment_store.maintenance.retention import PartitionSizes, Retention
from components.segment_store.settings import SegmentStoreSettings
from registry.contract import PAGE, ConsistentRead
from registry.errors import NotFound
from registry.models import Partition, PartitionLease, Row, Segment, Topic
from registry.position import SequenceVisibility
from registry.privileges import Area

log = structlog.get_logger(__name__)

_STUCK_S = 900.0
"""A step of upkeep that makes no progress for so long is reported: one object's worth of work takes seconds."""


class SegmentStore:
    """`reading` is this process's: whoever reads in the daemon reads through it."""

    written_areas = frozenset((Area.STREAMS,))
    durable = False

    def __init__(self, settings: SegmentStoreSettings, context: ComponentContext) -> None:
        self._settings = settings
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._small = SmallSegments(settings.merge_policy)
        self._sizes = PartitionSizes()
        self._guard = context.clock_guard
        self._retention = Retention(context.store, context.clock, settings.retention_step, self._sizes, self._guard)
        self._tally: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._moved: dict[str, float] = {}  # steps of upkeep under way: when they last made progress
        self._reading: Reading | None = None
        self._merger: Merger | None = None

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return frozenset((Topic.table, Partition.table, Segment.table, PartitionLease.table))

    @property
    def reading(self) -> Reading:
        if self._reading is None:
            raise RuntimeError("the segment store has not been started")
        return self._reading

    async def start(self) -> None:
        settings = self._settings
        if self._reading is None:
            disk = None
            if settings.disk_bytes and settings.disk_directory is not None:
                disk = await asyncio.to_thread(DiskBlocks, settings.disk_directory, settings.disk_bytes)
            policy = CachePolicy(memory_bytes=settings.memory_bytes)
            self._reading = Reading(self._context, policy=policy, disk=disk)
        reading = self._reading
        location = settings.location or join(canonical(self._context.lake.warehouse), "streams")
        self._merger = Merger(
            self._store, reading.objects, reading.cache, self._clock, canonical(location), settings.merge_policy
        )

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        reading, self._reading = self._reading, None
        if reading is not None:
            await reading.close()

    async def on_event(self, event: Event[Row]) -> None:
        await self.on_transactions([[event]])

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        self.reading.feed.apply(transactions)
        for events in transactions:
            self._count(events)

    async def on_health(self) -> bool:
        """Whether the tasks are alive, once the first refresh has begun them; whether storage answers is their own
        trouble, and counted.
        """
        return self._reading is not None and not any(task.done() for task in self._tasks)

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Caches forget; segments are counted anew, which reads every row once."""
        reading, place = self.reading, snapshot.visibility
        applied = place.last if isinstance(place, SequenceVisibility) else reading.store.applied
        reading.feed.resume(applied)
        self._small.clear()
        self._sizes.clear()
        async for page in snapshot.rows(Segment):
            self._small.add(page)
            self._sizes.add(page)
        self._begin_upkeep()

    def work(self) -> Iterator[Work]:
        now = self._clock.monotonic()
        for step, moved in self._moved.items():
            yield Work(step, now - moved, _STUCK_S)

    def metrics(self) -> Iterator[Metric]:
        reading = self._reading
        if reading is not None:
            counts = reading.cache.counts
            for place in ("memory", "shared", "disk", "storage"):
                told = "Blocks read, by where they were found."
                yield Metric("blocks", told, getattr(counts, place), {"found": place}, kind="counter")
            yield Metric("storage_requests", "Ranges asked of storage.", counts.requests, kind="counter")
            yield Metric("corrupt_blocks", "Blocks that were not what was written.", counts.corrupt, kind="counter")
            yield Metric("cache_bytes", "Decoded blocks in memory.", reading.cache.size_bytes)
            yield Metric("index_segments", "Segments in the index.", len(reading.store.index))
        yield Metric("merge_candidates", "Partitions to which small segments have come.", len(self._small))
        for name, told in (
            ("segments_expired", "Segments deleted by retention."),
            ("segments_merged", "Small segments that became part of larger ones."),
            ("merged_bytes", "Bytes written by merges."),
            ("lease_takeovers", "Times that a partition got another writer."),
            ("upkeep_failures", "Steps of upkeep to be repeated."),
        ):
            yield Metric(name, told, self._tally[name], kind="counter")

    def _begin_upkeep(self) -> None:
        """Not before everything is counted, or retention and merging would go by a part of it."""
        settings = self._settings
        if self._tasks:
            return
        self._every(settings.retention_every_s, "retention", self.enforce_retention)
        if settings.merge:
            self._every(settings.merge_every_s, "merging", self.merge)
        self._every(settings.clean_every_s, "cleaning", self.clean)

    # ---- upkeep -------------------------------------------------------------------------------------------

    async def enforce_retention(self) -> None:
        """One round."""
        gone = await self._retention.enforce()
        self._tally["segments_expired"] += gone
        if gone:
            log.info("segments expired", segments=gone)

    async def merge(self) -> None:
        """Until no partition is due, one object after the other."""
        merger = self._merger
        later: list[tuple[str, int]] = []
        while merger is not None and (due := self._small.take(self._settings.merge_partitions)):
            self._moved["merging"] = self._clock.monotonic()
            try:
                done = await merger.merge(due)
            except BaseException:
                self._small.put_back([*due, *later])
                raise
            self._small.leave(done.left)
            self._tally["segments_merged"] += done.old
            self._tally["merged_bytes"] += done.size_bytes
            if done.old:
                log.info("segments merged", old=done.old, new=done.new, bytes=done.size_bytes)
            if done.new:
                self._small.put_back(done.again)
            else:
                later += done.again  # too young still
        self._small.put_back(later)

    async def clean(self) -> None:
        """Idle producers and agents that are silent. Objects are deleted by the metadata orchestrator."""
        if not await may_delete_by_age(self._guard):
            return
        await warn_if_not_cleaned(self._store, self._context.lake.intents_stale_after_s)
        idle_ms = int(self._settings.producers_idle_s * 1000)
        while await self._store.forget_producers(idle_ms) >= PAGE:
            continue
        oldest = self._clock.now_ms() - int(self._settings.agents_silent_s * 1000)
        for agent in await self._store.list_agents():
            if agent.last_heartbeat < oldest:
                with suppress(NotFound):  # another daemon was quicker
                    await self._store.deregister_agent(agent.agent_id)

    def _count(self, events: Sequence[Event[Row]]) -> None:
        new = []
        for event in events:
            row = event.data
            if isinstance(row, Segment):
                if event.operation is Operation.INSERT:
                    new.append(row)
                elif event.operation is Operation.DELETE:
                    self._sizes.remove(row)
            elif isinstance(row, Topic):
                if event.operation is Operation.DELETE:
                    self._small.forget(row.name)
                    self._sizes.forget(row.name)
            elif isinstance(row, PartitionLease) and isinstance(event.before, PartitionLease):
                taken = row.epoch != event.before.epoch and row.leader_agent_id != event.before.leader_agent_id
                self._tally["lease_takeovers"] += taken
        if new:
            self._small.add(new)
            self._sizes.add(new)

    def _every(self, seconds: float, what: str, step: Callable[[], Awaitable[None]]) -> None:
        """The first time at once: a daemon may never live until the second. What fails is done in the next round."""

        async def run() -> None:
            while True:
                self._moved[what] = self._clock.monotonic()
                try:
                    await step()
                except NotFound:
                    pass  # a topic was deleted meanwhile
                except Exception as error:
                    self._tally["upkeep_failures"] += 1
                    log.warning("upkeep failed, will be tried again", step=what, error=repr(error))
                finally:
                    self._moved.pop(what, None)
                await self._clock.sleep(seconds)

        self._tasks.append(asyncio.create_task(run(), name=f"segment store {what}"))
