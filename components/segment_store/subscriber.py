"""The subscriber: updates the daemon's caches, wakes its readers, and runs maintenance in the background.

No delivery waits for storage. A stop or crash loses nothing: the refresh at the next start counts the segments again,
and the cleaner finds unregistered objects by their intents.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import structlog

from astha.clock_guard import may_delete_by_age
from astha.subscribers import (
    Area,
    Component,
    ComponentContext,
    ConsistentRead,
    Event,
    Metric,
    NotFound,
    Operation,
    Partition,
    PartitionLease,
    Row,
    Segment,
    Topic,
    Work,
)
from astha.tasks import BackgroundTasks
from components.lib.lake.registration.upload_intents import warn_if_not_cleaned
from components.lib.lake.storage.locations import canonical, streams_location
from components.lib.streams.read_context import ReadContext
from components.lib.streams.reader.block_cache import BlockCachePolicy
from components.lib.streams.reader.disk_cache import DiskBlockCache
from components.segment_store.consumer_lag import lag_metrics, read_lag
from components.segment_store.lease_states import LeaseStates
from components.segment_store.maintenance.merge_policy import SmallSegments
from components.segment_store.maintenance.merging import Merger
from components.segment_store.maintenance.retention import PartitionSizes, TopicRetention
from components.segment_store.settings import SegmentStoreSettings
from registry.contract import PAGE
from registry.position import SequenceVisibility, TimestampVisibility

log = structlog.get_logger(__name__)

_STUCK_S = 900.0
"""A maintenance step without progress for so long is reported: the work of one object takes seconds."""


class SegmentStore(Component):
    """Readers in the daemon's process share its `read_context`."""

    tables = (Topic, Partition, Segment, PartitionLease)
    durable = False
    written_areas = frozenset((Area.STREAMS,))

    def __init__(self, settings: SegmentStoreSettings, context: ComponentContext) -> None:
        self._settings = settings
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._small_segments = SmallSegments(settings.merge_policy)
        self._partition_sizes = PartitionSizes()
        self._guard = context.clock_guard
        self._retention = TopicRetention(
            context.store, context.clock, settings.retention_batch_segments, self._partition_sizes, self._guard
        )
        self._leases = LeaseStates()
        self._lag_metrics: list[Metric] = []
        self._counters: Counter[str] = Counter()
        self._maintenance = BackgroundTasks("segment store", context.clock)
        self._progress_at: dict[str, float] = {}  # running steps, and when they last made progress
        self._read_context: ReadContext | None = None
        self._merger: Merger | None = None

    @property
    def read_context(self) -> ReadContext:
        if self._read_context is None:
            raise RuntimeError("the segment store has not been started")
        return self._read_context

    async def start(self) -> None:
        settings = self._settings
        if self._read_context is None:
            disk = None
            if settings.disk_bytes and settings.disk_directory is not None:
                disk = await asyncio.to_thread(DiskBlockCache, settings.disk_directory, settings.disk_bytes)
            policy = BlockCachePolicy(memory_bytes=settings.memory_bytes)
            self._read_context = ReadContext(self._context, policy=policy, disk=disk)
        read_context = self._read_context
        location = settings.location or streams_location(self._context.lake)
        self._merger = Merger(
            self._store,
            read_context.objects,
            read_context.cache,
            self._clock,
            canonical(location),
            settings.merge_policy,
        )

    async def stop(self) -> None:
        await self._maintenance.stop()
        read_context, self._read_context = self._read_context, None
        if read_context is not None:
            await read_context.close()

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        self.read_context.change_feed.apply(transactions)
        for events in transactions:
            self._count_segments(events)

    async def on_health(self) -> bool:
        """Whether the component is started and no maintenance loop waits for its restart.

        Failed steps do not count here: they are retried, and counted in `maintenance_failures`.
        """
        return self._read_context is not None and not self._maintenance.failing()

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Clears the caches and counts the segments again, which reads every row once."""
        read_context, visibility = self.read_context, snapshot.visibility
        if isinstance(visibility, SequenceVisibility | TimestampVisibility):
            read_context.change_feed.resume(visibility.last)
        else:
            read_context.change_feed.resume(read_context.store.applied)
        self._small_segments.clear()
        self._partition_sizes.clear()
        async for page in snapshot.rows(Segment):
            self._small_segments.add(page)
            self._partition_sizes.add(page)
        self._leases.clear()
        async for rows in snapshot.rows(PartitionLease):
            self._leases.add(rows)
        self._start_maintenance()

    def work(self) -> Iterator[Work]:
        now = self._clock.monotonic()
        for step, moved in self._progress_at.items():
            yield Work(step, now - moved, _STUCK_S)

    def metrics(self) -> Iterator[Metric]:
        read_context = self._read_context
        if read_context is not None:
            counts = read_context.cache.counts
            for source in ("memory", "shared", "disk", "storage"):
                help_text = "Blocks read, by where they were found."
                yield Metric("blocks", help_text, getattr(counts, source), {"found": source}, kind="counter")
            yield Metric("storage_requests", "Range requests to storage.", counts.requests, kind="counter")
            yield Metric("corrupt_blocks", "Blocks that failed their checks.", counts.corrupt, kind="counter")
            yield Metric("cache_bytes", "Size of the decoded blocks in memory.", read_context.cache.size_bytes)
            yield Metric("index_segments", "Segments in the index in memory.", len(read_context.store.index))
        yield Metric("merge_candidates", "Partitions with new small segments.", len(self._small_segments))
        for name, help_text in (
            ("segments_expired", "Segments deleted by retention."),
            ("segments_merged", "Small segments merged into larger ones."),
            ("merged_bytes", "Bytes written by merges."),
            ("lease_takeovers", "Leases that moved to another agent."),
            ("maintenance_failures", "Maintenance steps that failed and will be retried."),
        ):
            yield Metric(name, help_text, self._counters[name], kind="counter")
        yield from self._leases.metrics()
        yield from self._lag_metrics

    def _start_maintenance(self) -> None:
        """Called after the count: retention and merging must not act on a partial count."""
        settings = self._settings
        if len(self._maintenance):
            return
        self._every(settings.retention_every_s, "retention", self.enforce_retention)
        if settings.merge:
            self._every(settings.merge_every_s, "merging", self.merge)
        self._every(settings.cleanup_every_s, "cleanup", self.clean_up)
        self._every(settings.lag_every_s, "consumer lag", self.measure_lag)
        self._every(settings.lag_every_s, "heartbeats", self.read_heartbeats)

    # ---- maintenance --------------------------------------------------------------------------------------

    async def enforce_retention(self) -> None:
        """Checks all topics once."""
        deleted = await self._retention.enforce()
        self._counters["segments_expired"] += deleted
        if deleted:
            log.info("segments expired", segments=deleted)

    async def merge(self) -> None:
        """Merges until no partition is due, one object after the other."""
        merger = self._merger
        later: dict[tuple[str, int], int] = {}
        while merger is not None and (due := self._small_segments.take_due(self._settings.merge_partitions)):
            self._progress_at["merging"] = self._clock.monotonic()
            try:
                done = await merger.merge(due)
            except BaseException:
                self._small_segments.put_back(due | later)
                raise
            self._small_segments.add_leftovers(done.leftovers)
            self._counters["segments_merged"] += done.old
            self._counters["merged_bytes"] += done.size_bytes
            if done.old:
                log.info("segments merged", old=done.old, new=done.new, bytes=done.size_bytes)
            revisit = {key: due[key] for key in done.revisit}
            if done.new:
                self._small_segments.put_back(revisit)
            else:
                later |= revisit  # still too young
        self._small_segments.put_back(later)

    async def clean_up(self) -> None:
        """Removes idle producers and silent agents. The metadata orchestrator deletes objects."""
        if not await may_delete_by_age(self._guard):
            return
        await warn_if_not_cleaned(self._store, self._context.lake.intents_stale_after_s)
        idle_ms = int(self._settings.forget_producers_after_s * 1000)
        while await self._store.forget_producers(idle_ms) >= PAGE:
            continue
        oldest = self._clock.now_ms() - int(self._settings.forget_agents_after_s * 1000)
        for agent in await self._store.list_agents():
            if agent.last_heartbeat < oldest:
                with suppress(NotFound):  # another daemon did it, or it lives
                    await self._store.deregister_agent(agent.agent_id, last_heartbeat=agent.last_heartbeat)

    async def measure_lag(self) -> None:
        """Measures the lag of all consumer groups once."""
        lags = await read_lag(self._store)
        self._lag_metrics = list(lag_metrics(lags, self._clock.now_ms()))

    async def read_heartbeats(self) -> None:
        """Reads the heartbeats of all agents once, which tell the leases that have expired."""
        now_ms = self._clock.now_ms()  # before the read: a heartbeat is never older than it seems
        self._leases.look({row.agent_id: row.last_heartbeat for row in await self._store.list_agents()}, now_ms)

    def _count_segments(self, events: Sequence[Event[Row]]) -> None:
        new = []
        for event in events:
            row = event.data
            if isinstance(row, Segment):
                if event.operation is Operation.INSERT:
                    new.append(row)
                elif event.operation is Operation.DELETE:
                    self._partition_sizes.remove(row)
            elif isinstance(row, Topic):
                if event.operation is Operation.DELETE:
                    self._small_segments.forget(row.name)
                    self._partition_sizes.forget(row.name)
            elif isinstance(row, PartitionLease) and isinstance(event.before, PartitionLease):
                taken = row.epoch != event.before.epoch and row.leader_agent_id != event.before.leader_agent_id
                self._counters["lease_takeovers"] += taken
            self._leases.apply(event)
        if new:
            self._small_segments.add(new)
            self._partition_sizes.add(new)

    def _every(self, seconds: float, what: str, step: Callable[[], Awaitable[None]]) -> None:
        """Runs the step at once, then periodically. A failed step is retried in the next round."""

        async def run() -> None:
            while True:
                self._progress_at[what] = self._clock.monotonic()
                try:
                    await step()
                except NotFound:
                    pass  # a topic was deleted meanwhile
                except Exception as error:
                    self._counters["maintenance_failures"] += 1
                    log.warning("maintenance step failed, will be retried", step=what, error=repr(error))
                finally:
                    self._progress_at.pop(what, None)
                await self._clock.sleep(seconds)

        self._maintenance.supervise(what, run)
