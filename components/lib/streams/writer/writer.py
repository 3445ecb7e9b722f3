"""`SegmentWriter`: appends to many partitions, durable when they return.

    async with LeaseAgent(store, clock) as agent, SegmentWriter(context, agent) as writer:
        appended = await writer.append("orders", 3, [b"one", NewRecord(b"two", key=b"k")])

At low load an append is uploaded at once. While uploads are in flight, further appends gather in a window. The window
closes when the uploads are done and it has enough appends for an object, or when appends stop coming for a moment, at
the latest after `window_s`. So objects grow with the load. Offsets are assigned when an object is registered, in the
order of its records: an object that fails leaves no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self
from uuid import uuid4

import msgspec
import structlog

from astha.byte_semaphore import ByteSemaphore
from astha.subscribers.context import ComponentContext
from astha.tasks import BackgroundTasks, cancel_and_wait, first_of
from components.lib.lake.storage.locations import canonical, parse, streams_location
from components.lib.lake.storage.objects import Objects, StorageError, StorageUnavailable
from components.lib.streams.agents import HeldLease, LeaseAgent
from components.lib.streams.errors import AppendFailed, AppendUnknown, RecordTooLarge, WriterClosed
from components.lib.streams.format import NewRecord, RecordColumns
from components.lib.streams.writer.accumulator import (
    Append,
    Appended,
    AppendId,
    PartitionAppends,
    ProducerState,
    ProducerStates,
    Window,
)
from components.lib.streams.writer.object_builder import PackedSegment, build_object
from components.lib.streams.writer.object_names import ObjectNames
from components.lib.streams.writer.registration import SegmentRegistrar
from components.lib.streams.writer.settings import WriterSettings, WriterStatistics
from registry.errors import RegistryError, Unavailable
from registry.models import LOCAL_BUCKET

log = structlog.get_logger(__name__)

_ENCODE_INLINE_BYTES = 256 << 10  # smaller objects are encoded faster than a thread is scheduled
_NAME_RETRY_S = 0.5
_MAX_PRODUCER_PARTITIONS = 10_000  # from there on, producer states of lost leases are dropped
_APPEND_OVERHEAD_BYTES = 200  # of an append in memory, beside its records


class _PartitionQueue:
    """Appends that wait for the lease of their partition, in order."""

    __slots__ = ("lock", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.lock = asyncio.Lock()


class SegmentWriter:
    """Safe for concurrent appends in one event loop. One per agent."""

    def __init__(
        self,
        context: ComponentContext,
        agent: LeaseAgent,
        settings: WriterSettings | None = None,
        *,
        objects: Objects | None = None,
    ) -> None:
        self.settings = settings or WriterSettings()
        self.agent = agent
        self._clock = context.clock
        self._store = context.store
        self._objects = objects or Objects(context.lake)
        self._owner = f"segment-writer {uuid4().hex}"
        location = canonical(self.settings.location or streams_location(context.lake))
        self._roots = self._objects.roots.extended([location])
        self._names = ObjectNames(
            self._store,
            self._clock,
            location,
            self._owner,
            max_batch=self.settings.preallocated_names,
            fresh_s=2 * self.settings.renew_every_s,
        )
        self._statistics = WriterStatistics()
        self._registrar = SegmentRegistrar(
            self._store, self._clock, self._owner, self.settings, self._statistics, self._mark_lost
        )
        self._memory = ByteSemaphore(self.settings.buffer_bytes)
        self._slots = asyncio.Semaphore(self.settings.parallel_uploads)
        self._window = Window()
        self._last_uploads: dict[HeldLease, asyncio.Task[None]] = {}
        self._producers: dict[tuple[str, int], tuple[HeldLease, ProducerStates]] = {}
        self._queues: dict[tuple[str, int], _PartitionQueue] = {}
        self._uploads: set[asyncio.Task[None]] = set()
        self._abandoned: list[str] = []  # objects without an owner that exist or may still appear
        self._first_append = asyncio.Event()
        self._window_changed = asyncio.Event()
        self._closing = False
        self._worker: asyncio.Task[None] | None = None
        self._background = BackgroundTasks(self._owner, self._clock)

    async def __aenter__(self) -> Self:
        if self.agent.writer is not None:
            raise RuntimeError(
                f"agent {self.agent.agent_id!r} has a writer already: use that one, or open another agent"
            )
        self.agent.writer = self
        self._worker = asyncio.create_task(self._run(), name="segment writer")
        self._background.supervise("intent renewal", self._renew_intents)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for accepted appends. Those that are not done within `close_timeout_s` fail with AppendUnknown."""
        self._closing = True
        self._memory.close(WriterClosed("the writer was closed before there was memory: nothing was written"))
        self._first_append.set()
        self._window_changed.set()
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=self.settings.close_timeout_s)
            await cancel_and_wait(self._worker, *self._uploads)
        await self._background.stop()
        for part in self._window.parts.values():
            part.fail(AppendFailed("the writer was closed: nothing was written"))
        self.agent.writer = None
        try:
            await self._disown_abandoned()
            await self._names.release_unused()
        except RegistryError as failure:
            log.warning("unused object names left to the cleaner", error=str(failure))

    @property
    def statistics(self) -> WriterStatistics:
        return msgspec.structs.replace(self._statistics, buffered_bytes=self._memory.acquired)

    async def append(
        self,
        topic: str,
        partition_id: int,
        records: RecordColumns | Iterable[NewRecord | bytes],
        *,
        append_id: AppendId | None = None,
    ) -> Appended:
        """Returns when all records are durable and have their offsets. Writes all of them or none.

        Appends to a partition are written in the order of the calls. A cancelled append may be written or not.
        NotLeader, NotFound, RecordTooLarge, WriterClosed, OutOfOrder: it was not accepted. AppendFailed: nothing was
        written. AppendUnknown: it may be written; it can be repeated safely with the same `append_id`. Several
        concurrent appends to a partition keep their order across a failure only if they have an `append_id`.
        """
        columns = records if isinstance(records, RecordColumns) else RecordColumns.of(records, self._clock.now_ms())
        if not len(columns):
            raise ValueError("an append of no records: there is no offset to return")
        size = columns.size + _APPEND_OVERHEAD_BYTES
        if size > self.settings.max_append_bytes:
            raise RecordTooLarge(
                f"an append of {size:,} bytes exceeds max_append_bytes = {self.settings.max_append_bytes:,}: split it"
            )
        self._require_open()
        await self._memory.acquire(size)
        try:
            result, accepted = await self._accept(topic, partition_id, columns, size, append_id)
        except BaseException:
            self._memory.release(size)
            raise
        if not accepted:
            self._memory.release(size)
            self._statistics.duplicates += 1
        return await asyncio.shield(result)

    async def flush(self) -> None:
        """Returns when all earlier appends have succeeded or failed."""
        while self._window or self._uploads:
            self._window.opened_at = float("-inf")
            self._window_changed.set()
            await asyncio.sleep(0)
            if self._uploads:
                await asyncio.wait(self._uploads, return_when=asyncio.FIRST_COMPLETED)

    # ---- accepting appends --------------------------------------------------------------------------------

    async def _accept(
        self, topic: str, partition_id: int, columns: RecordColumns, size: int, append_id: AppendId | None
    ) -> tuple[asyncio.Future[Appended], bool]:
        """Returns the pending result, and whether the append is new. Keeps the order of appends per partition."""
        key = (topic, partition_id)
        lease = self.agent.find(topic, partition_id)
        if lease is not None and append_id is None and key not in self._queues:
            return self._add(lease, columns, size, None, None)
        queue = self._queues.setdefault(key, _PartitionQueue())
        queue.waiting += 1
        try:
            async with queue.lock:
                while True:
                    lease = self.agent.find(topic, partition_id) or await self.agent.acquire(topic, partition_id)
                    state = None if append_id is None else await self._producer_state(lease, append_id.producer_id)
                    self._require_open()
                    if not (lease.lost or lease.releasing):
                        return self._add(lease, columns, size, append_id, state)
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                del self._queues[key]

    def _add(
        self,
        lease: HeldLease,
        columns: RecordColumns,
        size: int,
        append_id: AppendId | None,
        state: ProducerState | None,
    ) -> tuple[asyncio.Future[Appended], bool]:
        if state is not None and append_id is not None:
            repeated = state.find_repeated(append_id, len(columns))
            if repeated is not None:
                return repeated, False
        append = Append(lease, columns, size, append_id)
        if state is not None and append_id is not None:
            state.remember(append_id, len(columns), append.result)
        now = self._clock.monotonic()
        if not self._window:
            self._window = Window(now, opened_during_upload=bool(self._uploads))
            self._first_append.set()
        self._window.add(append, now)
        lease.add_users()
        if self._closes_at() <= now:
            self._window_changed.set()
        return append.result, True

    async def _producer_state(self, lease: HeldLease, producer_id: str) -> ProducerState:
        """The state of an earlier lease does not count: its appends may have failed, or other agents have written."""
        known_lease, states = self._producers.get(lease.key, (None, None))
        if known_lease is lease and states is not None and (state := states.find(producer_id)) is not None:
            return state
        rows = await self._store.get_producer_sequences([(*lease.key, producer_id)])
        if known_lease is not lease or states is None:
            if len(self._producers) >= _MAX_PRODUCER_PARTITIONS:
                self._producers = {key: known for key, known in self._producers.items() if not known[0].lost}
            states = ProducerStates()
            self._producers[lease.key] = (lease, states)
        return states.add(producer_id, ProducerState(rows[0] if rows else None))

    def _require_open(self) -> None:
        if self._closing or self._worker is None:
            raise WriterClosed("the writer is not open: nothing was written")

    # ---- uploading windows --------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not (self._closing and not self._window):
            if not self._window:
                self._first_append.clear()
                await self._first_append.wait()
                continue
            await self._wait_for_window()
            window, self._window = self._window, Window()
            self._statistics.windows += 1
            for parts in window.objects(self.settings.max_object_segments):
                await self._start_upload(parts)
                await asyncio.sleep(0)  # other tasks run between the encoding of two objects
        while self._uploads:
            await asyncio.wait(self._uploads)

    async def _wait_for_window(self) -> None:
        """Returns when the window should close."""
        for _ in range(2):  # producers that got their result in this step of the loop may append more
            await asyncio.sleep(0)
        while not self._closing:
            remaining_s = self._closes_at() - self._clock.monotonic()
            if remaining_s <= 0:
                return
            self._window_changed.clear()
            await first_of(self._clock.sleep(remaining_s), self._window_changed.wait())

    def _closes_at(self) -> float:
        return self._window.closes_at(self.settings, uploads_in_flight=bool(self._uploads))

    async def _start_upload(self, parts: Sequence[PartitionAppends]) -> None:
        try:
            await self._slots.acquire()
        except BaseException:
            self._finish(parts, AppendFailed("the writer was closed: nothing was written"))
            raise
        earlier = {last for part in parts if (last := self._last_uploads.get(part.lease)) is not None}
        upload = asyncio.create_task(self._upload_and_register(parts, earlier), name="segment object")
        self._uploads.add(upload)
        for part in parts:
            self._last_uploads[part.lease] = upload
        upload.add_done_callback(lambda done: self._upload_ended(done, parts))

    def _upload_ended(self, upload: asyncio.Task[None], parts: Sequence[PartitionAppends]) -> None:
        self._slots.release()
        self._uploads.discard(upload)
        self._window_changed.set()
        for part in parts:
            if self._last_uploads.get(part.lease) is upload:
                del self._last_uploads[part.lease]
        failure = None if upload.cancelled() else upload.exception()
        if failure is not None:
            log.error("object upload failed unexpectedly", error=repr(failure))
        self._finish(parts, AppendUnknown(f"the writer was closed or has failed: {failure!r}"))

    def _finish(self, parts: Sequence[PartitionAppends], otherwise: Exception) -> None:
        """Releases and counts the appends. Those without a result fail with `otherwise`."""
        for part in parts:
            part.lease.remove_users(len(part.appends))
            for append in part.appends:
                if not append.result.done():
                    self.agent.mark_lost(part.lease)
                    append.fail(otherwise)
                self._memory.release(append.size)
                if append.result.exception() is None:
                    self._statistics.appends += 1
                    self._statistics.records += len(append.columns)
                else:
                    self._statistics.failures += 1

    async def _upload_and_register(self, parts: Sequence[PartitionAppends], earlier: set[asyncio.Task[None]]) -> None:
        """Encodes and uploads one object, and registers it after the earlier objects of its partitions."""
        uri: str | None = None
        try:
            if sum(append.size for part in parts for append in part.appends) < _ENCODE_INLINE_BYTES:
                data, packed = build_object(parts, self.settings.block_bytes)
            else:
                data, packed = await asyncio.to_thread(build_object, parts, self.settings.block_bytes)
            uri = await self._take_name()
            started = self._clock.monotonic()
            await self._objects.put(uri, data)
            self._statistics.upload_s.append(self._clock.monotonic() - started)
        except Exception as error:
            if earlier:
                await asyncio.wait(earlier)
            for part in parts:
                self.agent.mark_lost(part.lease)
                failed = AppendFailed(f"{part.lease!r}: nothing was written: {error}")
                failed.__cause__ = error
                part.fail(failed)
            if uri is not None:
                await self._delete_object(uri, may_still_appear=isinstance(error, StorageUnavailable))
            return
        if earlier:
            await asyncio.wait(earlier)
        location = parse(uri)
        registered = await self._registrar.register(location.root or LOCAL_BUCKET, location.key, packed)
        if registered:
            self._statistics.stored_bytes += len(data)
        elif registered is None:
            self._abandoned.append(uri)
        else:
            await self._delete_object(uri)

    async def _take_name(self) -> str:
        """Retries while the registry is unavailable, as long as a registration would."""
        deadline = self._clock.monotonic() + self.settings.registration_timeout_s
        while True:
            try:
                return await self._names.take()
            except Unavailable:
                if self._clock.monotonic() + _NAME_RETRY_S > deadline:
                    raise
                self._statistics.retries += 1
                await self._clock.sleep(_NAME_RETRY_S)

    def _mark_lost(self, packed: PackedSegment) -> None:
        self.agent.mark_lost(packed.part.lease)

    # ---- unregistered objects -----------------------------------------------------------------------------

    async def _delete_object(self, uri: str, *, may_still_appear: bool = False) -> None:
        """Leaves to the cleaner what cannot be deleted now or may still appear."""
        try:
            await self._objects.delete_many([uri], roots=self._roots)
            if not may_still_appear:
                await self._store.complete_intents([uri])
                return
        except (StorageError, RegistryError) as error:
            log.warning("unregistered object left to the cleaner", uri=uri, error=str(error))
        self._abandoned.append(uri)

    async def _renew_intents(self) -> None:
        while True:
            await self._clock.sleep(self.settings.renew_every_s)
            try:
                await self._disown_abandoned()
                started = self._clock.monotonic()
                await self._store.renew_intents(None, owner=self._owner)
                self._names.renewed(started)
            except RegistryError as error:
                log.warning("upload intents not renewed", owner=self._owner, error=str(error))

    async def _disown_abandoned(self) -> None:
        """Gives intents of abandoned objects another owner, so that they are not renewed and become stale."""
        abandoned, self._abandoned = self._abandoned, []
        if abandoned:
            try:
                await self._store.renew_intents(abandoned, owner=self._owner, new_owner=f"{self._owner}, abandoned")
            except BaseException:
                self._abandoned += abandoned
                raise
