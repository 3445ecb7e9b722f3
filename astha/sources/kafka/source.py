"""The transaction stream on a Kafka topic as a `Source`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count

import structlog

from astha.clock import LoopClock
from astha.errors import SourceLost
from astha.sources.contract import Batch, Gap, PositionUnit, Progress, Replay, SourceStatus, Started
from astha.sources.follower import Follower, follower_status
from astha.sources.kafka.offsets import Marks, Resumption
from astha.sources.kafka.reader_thread import ReaderThread
from astha.sources.kafka.topic import KafkaTopic
from astha.tasks import to_completion
from registry.contract import MetadataStore
from registry.position import Position

log = structlog.get_logger(__name__)

_replays = count(1)


class KafkaSource:
    """Reads partition 0 of a topic. Offsets are committed under the group's name after `acknowledge`, with the position
    that they stand for, and are used only if they belong to the history that is recorded in the registry.
    """

    def __init__(
        self,
        topic: KafkaTopic,
        store: MetadataStore,
        group: str,
        clock: LoopClock,
        unit: PositionUnit = "bytes",
    ) -> None:
        self._topic = topic
        self._store = store
        self._group = group
        self._clock = clock
        self._unit: PositionUnit = unit
        self._marks = Marks()
        self._acknowledged = Position(0)
        self._reader: ReaderThread | None = None
        self._follower: Follower | None = None

    @property
    def client_id(self) -> str:
        return f"astha-{self._group}"

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        """One stream at a time."""
        if self._reader is not None:
            raise RuntimeError(f"{self._topic.address.shown} is already being read")
        follower = Follower(self._store, self._group, tables, self._clock)
        history = await follower.recorded_history()
        marks = self._marks = Marks()
        self._acknowledged = Position(0)

        def start(committed: Resumption | None) -> int | None:
            if committed is None or committed.history != history:
                return None
            follower.continuity.resume(committed.history, committed.position, committed.epoch)
            return committed.offset

        reader = self._reader = ReaderThread(self._topic, self.client_id, f"astha-{self._group}", start)
        self._follower = follower
        continuity = follower.continuity
        try:
            while (chunk := await reader.next()) is not None:
                if chunk.reopened:
                    continuity.interrupted()
                batches = follower.deliver(chunk.records, lambda offset: marks.note(continuity, offset + 1))
                async with aclosing(batches):
                    async for batch in batches:
                        if isinstance(batch, Gap):
                            self._acknowledged = Position(0)
                        yield batch
                if chunk.at_end:
                    continuity.require_tables()
        finally:
            self._reader = None
            await to_completion(reader.stop())

    async def replay(self, tables: frozenset[str], after: Position) -> Replay:
        """Uses a consumer of its own, which commits nothing."""
        mark = self._marks.at_most(after)
        if mark is None:
            raise SourceLost(f"position {after} is not in the part of the topic that was read")
        follower = Follower(self._store, self._group, tables, self._clock)
        follower.continuity.resume(mark.history, mark.position, mark.epoch)
        reader = ReaderThread(self._topic, f"{self.client_id}-replay-{next(_replays)}", None, lambda _: mark.offset)
        started = False
        try:
            while (chunk := await reader.next()) is not None:
                if chunk.reopened:
                    raise SourceLost("the replay was interrupted")
                async with aclosing(follower.deliver(chunk.records)) as batches:
                    async for batch in batches:
                        if isinstance(batch, Progress):
                            yield batch
                        elif isinstance(batch, Started) and not started and batch.position <= after:
                            started = True
                        elif isinstance(batch, (Gap, Started)):
                            raise SourceLost("the topic no longer contains what is to be replayed")
                        elif new := [item for item in batch if item.position > after]:
                            yield new
            raise SourceLost("the replay has ended")
        finally:
            await to_completion(reader.stop())

    def acknowledge(self, position: Position) -> None:
        self._acknowledged = max(self._acknowledged, position)
        mark = self._marks.acknowledge(position)
        if mark is not None and self._reader is not None:
            self._reader.commit(mark)

    def retained_for(self, position: Position) -> int:
        """The broker retains by time and size, independently of readers."""
        return 0

    def status(self) -> SourceStatus:
        reader = self._reader
        failure = "not streaming" if reader is None else reader.failure
        return follower_status(self._follower, failure, self._acknowledged, self._unit)

    async def close(self) -> None:
        if self._reader is not None:
            await self._reader.stop()
