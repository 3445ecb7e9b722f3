"""`SegmentWriter`: appends of many partitions, durable when they return.

    async with Agent(store, clock) as agent, SegmentWriter(context, agent) as writer:
        appended = await writer.append("orders", 3, [b"one", NewRecord(b"two", key=b"k")])

Nobody waits at low load: an append that finds nothing on its way goes at once. While objects are on their way, others
gather, until these have arrived; and where one append follows upon the other, until they are worth an object, but no
longer than the window. So the more there is to do, the more goes into one object. Offsets are given when an object is
registered, in the order in which its records came: an object that fails leaves no gap.
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
from components.lib.lake.storage.locations import canonical, join, parse
from components.lib.lake.storage.objects import Objects, StorageError, StorageUnavailable
from components.lib.streams.agents import Agent, HeldLease
from components.lib.streams.errors import AppendFailed, AppendUnknown, RecordTooLarge, WriterClosed
from components.lib.streams.format import Columns, NewRecord
from components.lib.streams.writer.accumulator import (
    Append,
    Appended,
    AppendId,
    PartitionAppends,
    ProducerState,
    ProducerStates,
    Window,
)
from components.lib.streams.writer.object_builder import PackedSegment, pack
from components.lib.streams.writer.object_names import ObjectNames
from components.lib.streams.writer.registration import SegmentRegistrar
from components.lib.streams.writer.settings import WriterSettings
from components.lib.streams.writer.statistics import WriterStatistics
from registry.errors import RegistryError, Unavailable
from registry.models import LOCAL_BUCKET

log = structlog.get_logger(__name__)

_SMALL = 256 << 10  # bytes that are encoded faster than a thread is asked to
_NAME_AGAIN_S = 0.5
_MANY_PARTITIONS = 10_000  # whose producers are remembered: from there on those of lost leases are looked for
_EACH = 200  # bytes of an append in memory beside its records


class _Line:
    """Appends that wait for their partition, in order."""

    __slots__ = ("length", "turn")

    def __init__(self) -> None:
        self.length = 0
        self.turn = asyncio.Lock()


class SegmentWriter:
    """Safe for concurrent appends in one event loop. One for each agent."""

    def __init__(
        self,
        context: ComponentContext,
        agent: Agent,
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
        location = canonical(self.settings.location or join(canonical(context.lake.warehouse), "streams"))
        self._roots = self._objects.roots.extended([location])
        self._names = ObjectNames(
            self._store, self._clock, location, self._owner, self.settings.names_ahead, 2 * self.settings.renew_every_s
        )
        self._statistics = WriterStatistics()
        self._registrar = SegmentRegistrar(
            self._store, self._clock, self._owner, self.settings, self._statistics, self._lose
        )
        self._room = ByteSemaphore(self.settings.buffer_bytes)
        self._slots = asyncio.Semaphore(self.settings.parallel_objects)
        self._window = Window()
        self._tails: dict[HeldLease, asyncio.Task[None]] = {}  # the last object on its way of each partition
        self._known: dict[tuple[str, int], tuple[HeldLease, ProducerStates]] = {}
        self._lines: dict[tuple[str, int], _Line] = {}
        self._flights: set[asyncio.Task[None]] = set()
        self._abandoned: list[str] = []  # objects that may come to exist, and are nobody's
        self._arrival = asyncio.Event()
        self._settled = asyncio.Event()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        if self.agent.writer is not None:
            raise RuntimeError(
                f"agent {self.agent.agent_id!r} has a writer already: use that one, or open another agent"
            )
        self.agent.writer = self
        self._tasks = [
            asyncio.create_task(self._work(), name="segment writer"),
            asyncio.create_task(self._renew(), name="intents of objects"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for what was accepted. What is not done in time fails with AppendUnknown."""
        self._closing = True
        self._room.close(WriterClosed("the writer was closed before there was room: nothing was written"))
        self._arrival.set()
        self._settled.set()
        work, renewing = self._tasks
        await asyncio.wait([work], timeout=self.settings.close_after_s)
        for task in (work, renewing, *self._flights):
            task.cancel()
        await asyncio.gather(work, renewing, *self._flights, return_exceptions=True)
        for part in self._window.parts.values():
            part.fail(AppendFailed("the writer was closed: nothing was written"))
        self.agent.writer = None
        try:
            await self._give_away()
            await self._names.give_back()
        except RegistryError as failure:
            log.warning("unused names are left to the cleaner", error=str(failure))

    @property
    def statistics(self) -> WriterStatistics:
        return msgspec.structs.replace(self._statistics, waiting_bytes=self._room.taken)

    async def append(
        self,
        topic: str,
        partition_id: int,
        records: Columns | Iterable[NewRecord | bytes],
        *,
        stamp: AppendId | None = None,
    ) -> Appended:
        """Durable and with its offsets when it returns; all of it or nothing.

        Appends of a partition are written in the order in which they were made. Cancelled, it may be written or not.
        NotLeader, NotFound, RecordTooLarge, WriterClosed, OutOfOrder: it was not accepted. AppendFailed: nothing of it
        was written. AppendUnknown: it may be written; with the same ``stamp`` it can be repeated safely. Who has
        several appends of a partition on their way at once and wants their order kept over a failure stamps them.
        """
        columns = records if isinstance(records, Columns) else Columns.of(records, self._clock.now_ms())
        if not len(columns):
            raise ValueError("an append of no records: there is no offset to answer")
        size = columns.size + _EACH
        if size > self.settings.append_bytes:
            raise RecordTooLarge(
                f"an append of {size:,} bytes: the most is append_bytes = {self.settings.append_bytes:,}; divide it"
            )
        self._require_open()
        await self._room.take(size)
        try:
            result, accepted = await self._accept(topic, partition_id, columns, size, stamp)
        except BaseException:
            self._room.give_back(size)
            raise
        if not accepted:
            self._room.give_back(size)
            self._statistics.duplicates += 1
        return await asyncio.shield(result)

    async def flush(self) -> None:
        """Everything appended so far has its answer."""
        while self._window or self._flights:
            self._window.opened_at = float("-inf")
            self._settled.set()
            await asyncio.sleep(0)
            if self._flights:
                await asyncio.wait(self._flights, return_when=asyncio.FIRST_COMPLETED)

    # ---- appends come in ----------------------------------------------------------------------------------

    async def _accept(
        self, topic: str, partition_id: int, columns: Columns, size: int, stamp: AppendId | None
    ) -> tuple[asyncio.Future[Appended], bool]:
        """Its answer to come, and whether it is new. Nobody passes those who wait for the same partition."""
        key = (topic, partition_id)
        held = self.agent.find(topic, partition_id)
        if held is not None and stamp is None and key not in self._lines:
            return self._add(held, columns, size, None, None)
        line = self._lines.setdefault(key, _Line())
        line.length += 1
        try:
            async with line.turn:
                while True:
                    held = self.agent.find(topic, partition_id) or await self.agent.hold(topic, partition_id)
                    known = None if stamp is None else await self._knowledge(held, stamp.producer_id)
                    self._require_open()
                    if not (held.lost or held.leaving):
                        return self._add(held, columns, size, stamp, known)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[key]

    def _add(
        self, held: HeldLease, columns: Columns, size: int, stamp: AppendId | None, known: ProducerState | None
    ) -> tuple[asyncio.Future[Appended], bool]:
        if known is not None and stamp is not None:
            repeated = known.repeated(stamp, len(columns))
            if repeated is not None:
                return repeated, False
        append = Append(held, columns, size, stamp)
        if known is not None and stamp is not None:
            known.note(stamp, len(columns), append.result)
        now = self._clock.monotonic()
        if not self._window:
            self._window = Window(now, behind=bool(self._flights))
            self._arrival.set()
        self._window.add(append, now)
        held.use()
        if self._closes_at() <= now:
            self._settled.set()
        return append.result, True

    async def _knowledge(self, held: HeldLease, producer_id: str) -> ProducerState:
        """What was known under an earlier lease is forgotten: it may have failed, or others have written since."""
        of, producers = self._known.get(held.key, (None, None))
        if of is held and producers is not None and (known := producers.find(producer_id)) is not None:
            return known
        rows = await self._store.get_producer_sequences([(*held.key, producer_id)])
        if of is not held or producers is None:
            if len(self._known) >= _MANY_PARTITIONS:
                self._known = {key: known for key, known in self._known.items() if not known[0].lost}
            producers = ProducerStates()
            self._known[held.key] = (held, producers)
        return producers.add(producer_id, ProducerState(rows[0] if rows else None))

    def _require_open(self) -> None:
        if self._closing or not self._tasks:
            raise WriterClosed("the writer is not open: nothing was written")

    # ---- windows go out -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        while not (self._closing and not self._window):
            if not self._window:
                self._arrival.clear()
                await self._arrival.wait()
                continue
            await self._gather()
            window, self._window = self._window, Window()
            self._statistics.windows += 1
            for parts in window.objects(self.settings.object_segments):
                await self._launch(parts)
                await asyncio.sleep(0)  # encoded one after the other, with answers for others in between
        while self._flights:
            await asyncio.wait(self._flights)

    async def _gather(self) -> None:
        """While something is on its way, or appends come in one upon the other, more may come to go together."""
        for _ in range(2):  # those who were answered in this step of the loop may have more
            await asyncio.sleep(0)
        while not self._closing:
            rest = self._closes_at() - self._clock.monotonic()
            if rest <= 0:
                return
            self._settled.clear()
            ends = {asyncio.ensure_future(self._clock.sleep(rest)), asyncio.ensure_future(self._settled.wait())}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()

    def _closes_at(self) -> float:
        return self._window.closes_at(self.settings, flying=bool(self._flights))

    async def _launch(self, parts: Sequence[PartitionAppends]) -> None:
        try:
            await self._slots.acquire()
        except BaseException:
            self._settle(parts, AppendFailed("the writer was closed: nothing was written"))
            raise
        before = {tail for part in parts if (tail := self._tails.get(part.held)) is not None}
        flight = asyncio.create_task(self._fly(parts, before), name="segment object")
        self._flights.add(flight)
        for part in parts:
            self._tails[part.held] = flight
        flight.add_done_callback(lambda done: self._landed(done, parts))

    def _landed(self, flight: asyncio.Task[None], parts: Sequence[PartitionAppends]) -> None:
        self._slots.release()
        self._flights.discard(flight)
        self._settled.set()
        for part in parts:
            if self._tails.get(part.held) is flight:
                del self._tails[part.held]
        failure = None if flight.cancelled() else flight.exception()
        if failure is not None:
            log.error("an object was lost on its way", error=repr(failure))
        self._settle(parts, AppendUnknown(f"the writer was closed or has failed: {failure!r}"))

    def _settle(self, parts: Sequence[PartitionAppends], otherwise: Exception) -> None:
        """Counts them out; those that have no answer yet get this one."""
        for part in parts:
            part.held.leave(len(part.appends))
            for append in part.appends:
                if not append.result.done():
                    self.agent.lose(part.held)
                    append.fail(otherwise)
                self._room.give_back(append.size)
                if append.result.exception() is None:
                    self._statistics.appends += 1
                    self._statistics.records += len(append.columns)
                else:
                    self._statistics.failures += 1

    async def _fly(self, parts: Sequence[PartitionAppends], before: set[asyncio.Task[None]]) -> None:
        """One object: encoded, uploaded, and registered after all that was before it in its partitions."""
        uri: str | None = None
        try:
            if sum(append.size for part in parts for append in part.appends) < _SMALL:
                data, packed = pack(parts, self.settings.block_bytes)
            else:
                data, packed = await asyncio.to_thread(pack, parts, self.settings.block_bytes)
            uri = await self._name()
            started = self._clock.monotonic()
            await self._objects.put(uri, data)
            self._statistics.upload_s.append(self._clock.monotonic() - started)
        except Exception as error:
            if before:
                await asyncio.wait(before)
            for part in parts:
                self.agent.lose(part.held)
                failed = AppendFailed(f"{part.held!r}: nothing was written: {error}")
                failed.__cause__ = error
                part.fail(failed)
            if uri is not None:
                await self._remove(uri, doubtful=isinstance(error, StorageUnavailable))
            return
        if before:
            await asyncio.wait(before)
        place = parse(uri)
        registered = await self._registrar.register(place.root or LOCAL_BUCKET, place.key, packed)
        if registered:
            self._statistics.stored_bytes += len(data)
        elif registered is None:
            self._abandoned.append(uri)
        else:
            await self._remove(uri)

    async def _name(self) -> str:
        """As patient as a registration."""
        deadline = self._clock.monotonic() + self.settings.register_for_s
        while True:
            try:
                return await self._names.take()
            except Unavailable:
                if self._clock.monotonic() + _NAME_AGAIN_S > deadline:
                    raise
                self._statistics.retries += 1
                await self._clock.sleep(_NAME_AGAIN_S)

    def _lose(self, packed: PackedSegment) -> None:
        self.agent.lose(packed.part.held)

    # ---- objects that nobody wants ------------------------------------------------------------------------

    async def _remove(self, uri: str, *, doubtful: bool = False) -> None:
        """What can't be removed now, or may still come to exist, is left to the cleaner."""
        try:
            await self._objects.delete_many([uri], roots=self._roots)
            if not doubtful:
                await self._store.complete_intents([uri])
                return
        except (StorageError, RegistryError) as error:
            log.warning("an object is left to the cleaner", uri=uri, error=str(error))
        self._abandoned.append(uri)

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(self.settings.renew_every_s)
            try:
                await self._give_away()
                began = self._clock.monotonic()
                await self._store.renew_intents(None, owner=self._owner)
                self._names.renewed(began)
            except RegistryError as error:
                log.warning("intents could not be renewed", owner=self._owner, error=str(error))

    async def _give_away(self) -> None:
        """So that they are not renewed with ours, and grow stale."""
        abandoned, self._abandoned = self._abandoned, []
        if abandoned:
            try:
                await self._store.renew_intents(abandoned, owner=self._owner, new_owner=f"{self._owner}, abandoned")
            except BaseException:
                self._abandoned += abandoned
                raise
