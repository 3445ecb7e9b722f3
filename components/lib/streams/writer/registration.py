"""An uploaded object's segments become their partitions', with the offsets that are next; or it is known that not.

A refusal names partitions: these fail, the rest is registered without them. No answer means that nobody knows whether
it happened. It is sent again, and then what is refused is looked for before the refusal is believed. That is sound
because every registration locks what it checks: if the first one is not seen when the second one is refused, it was
refused too, or will be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from astha.clock import LoopClock
from components.lib.streams.errors import AppendFailed, AppendUnknown
from components.lib.streams.writer.object_builder import PackedSegment
from components.lib.streams.writer.settings import WriterSettings
from components.lib.streams.writer.statistics import WriterStatistics
from registry.contract import MetadataStore
from registry.errors import Conflict, NotFound, RegistryError, Unavailable
from registry.models import object_uri

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 2.0


class SegmentRegistrar:
    """``lose`` is called with each part whose partition must be acquired anew before anybody writes it."""

    def __init__(
        self,
        store: MetadataStore,
        clock: LoopClock,
        owner: str,
        settings: WriterSettings,
        statistics: WriterStatistics,
        lose: Callable[[PackedSegment], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._register_for_s = settings.register_for_s
        self._slots = asyncio.Semaphore(settings.parallel_registrations)
        self._statistics = statistics
        self._lose = lose

    async def register(self, bucket: str, key: str, packed: Sequence[PackedSegment]) -> bool | None:
        """Every part gets its answer. False: nothing of the object is registered, nor will be. None: nobody knows."""
        flight = _Registration(self, bucket, key, packed)
        try:
            return await flight.run()
        except BaseException as error:
            for one in flight.open:
                self._lose(one)
                one.part.fail(AppendUnknown(f"{flight.uri}: interrupted while it was registered: {error!r}"))
            raise


class _Registration:
    def __init__(self, registrar: SegmentRegistrar, bucket: str, key: str, packed: Sequence[PackedSegment]) -> None:
        self._store = registrar._store
        self._clock = registrar._clock
        self._owner = registrar._owner
        self._slots = registrar._slots
        self._statistics = registrar._statistics
        self._lose = registrar._lose
        self._deadline = self._clock.monotonic() + registrar._register_for_s
        self._failures = 0
        self._doubtful = False  # sent once without an answer
        self._place = (bucket, key)
        self._registered = False
        self.uri = object_uri(bucket, key)
        self.open = list(packed)

    async def run(self) -> bool | None:
        self._refuse([one for one in self.open if one.part.held.lost], "its partition was lost before")
        while self.open:
            try:
                await self._send()
            except Unavailable as error:
                self._doubtful = True
                if not await self._rest():
                    self._give_up(error)
                    return None
            except RegistryError as error:
                try:
                    await self._believe(error)
                except Unavailable as lost:
                    self._give_up(lost)
                    return None
            else:
                self._succeed({one.part.held.key: one.part.held.next_offset for one in self.open})
        return self._registered

    async def _send(self) -> None:
        drafts = [one.draft(*self._place) for one in self.open]
        fences = [one.part.held.fence for one in self.open]
        producers = [draft for one in self.open for draft in one.part.producers(one.part.held.next_offset)]
        async with self._slots:
            started = self._clock.monotonic()
            await self._store.add_segments(drafts, fences=fences, producers=producers, intents_of=self._owner)
        self._statistics.register_s.append(self._clock.monotonic() - started)

    async def _believe(self, error: RegistryError) -> None:
        """A refusal: of some parts, or of all; or of what is registered already."""
        found = await self._insist(self._find)
        if found:
            self._succeed(found)
            return
        self._doubtful = False
        refused = await self._insist(lambda: self._refused(error))
        self._refuse(refused, str(error))

    async def _find(self) -> dict[tuple[str, int], int]:
        """Base offsets of what is registered of this object."""
        if not self._doubtful:
            return {}
        rows = await self._store.get_object_segments(*self._place)
        return {(row.topic, row.partition_id): row.base_offset for row in rows}

    async def _refused(self, error: RegistryError) -> list[PackedSegment]:
        if isinstance(error, Conflict):
            names = set(error.names)
            named = [one for one in self.open if "{}/{}".format(*one.part.held.key) in names]
        elif isinstance(error, NotFound):
            known = {
                (row.topic, row.partition_id)
                for row in await self._store.get_partitions([one.part.held.key for one in self.open])
            }
            named = [one for one in self.open if one.part.held.key not in known]
        else:
            named = []
        return named or list(self.open)

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await ask()
            except Unavailable:
                if not await self._rest():
                    raise

    async def _rest(self) -> bool:
        """False if there is no time left."""
        self._failures += 1
        self._statistics.retries += 1
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(self._failures - 1, 20))
        wait = longest * (0.5 + 0.5 * self._clock.chance())
        if self._clock.monotonic() + wait > self._deadline:
            return False
        await self._clock.sleep(wait)
        return True

    def _succeed(self, bases: dict[tuple[str, int], int]) -> None:
        registered, self.open = self.open, []
        for one in registered:
            base = bases.get(one.part.held.key)
            if base is None:
                self._refuse([one], "the object was registered without it")
                continue
            self._registered = True
            one.part.held.next_offset = base + one.segment.records
            one.part.succeed(base)
            self._statistics.segments += 1
        self._statistics.objects += 1

    def _refuse(self, refused: Sequence[PackedSegment], why: str) -> None:
        for one in refused:
            self._lose(one)
            one.part.fail(AppendFailed(f"{one.part.held!r}: nothing was written: {why}"))
        gone = set(map(id, refused))
        self.open = [one for one in self.open if id(one) not in gone]

    def _give_up(self, error: RegistryError) -> None:
        log.warning("nobody knows whether an object is registered", uri=self.uri, error=str(error))
        for one in self.open:
            self._lose(one)
            unknown = AppendUnknown(f"{one.part.held!r}: the registry does not answer, it may be written: {error}")
            unknown.__cause__ = error
            one.part.fail(unknown)
        self.open = []
