"""The records of layout `transactions`: commits, gaps and heartbeats, in one partition, for followers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

import structlog

from astha.events.stream_records import Sender, encode_transaction
from astha.events.traceparent import HEADER as TRACE_HEADER
from astha.subscribers import BackgroundTasks, ComponentContext, Event, Position, Problem, RegistryError, Retry, Row
from astha.tasks import raise_if_cancelled
from components.kafka_sink.errors import GaveWay, NotAcknowledged
from components.kafka_sink.outbox import Outbox, RecordId
from components.kafka_sink.record_encoding import NO_HEADERS, encode_headers
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.worker import Worker
from components.lib.problem_tracker import ProblemTracker
from components.lib.transaction_stream import StreamMessage, TransactionStream

log = structlog.get_logger(__name__)

_REASON = "the sink of the transaction stream has refreshed"
_LISTED = b'"events":['
_HEAD_BYTES = 4_096
_LAST_BEAT_S = 2.0
_HEARTBEATS = ("heartbeats",)


class TransactionRecords:
    """Sends what `TransactionStream` decides. All calls go through one worker, so a heartbeat never overtakes a
    gap.
    """

    def __init__(
        self,
        settings: KafkaSinkSettings,
        context: ComponentContext,
        worker: Worker,
        outbox: Outbox,
        largest_record: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._context = context
        self._worker = worker
        self._outbox = outbox
        self._largest_record = largest_record
        self._stream = TransactionStream(
            context.store, context.component, context.group, context.tables, context.component_states
        )
        self._tasks = BackgroundTasks("kafka sink", context.clock)
        self._numbers = count()
        self._problems = ProblemTracker(context.clock)
        self.counters: Counter[str] = Counter()

    async def start(self) -> None:
        await self._stream.open()
        if not len(self._tasks):
            self._tasks.supervise("heartbeat", self._beat)

    async def stop(self) -> None:
        """The last heartbeat says how far the stream has come: a successor resumes there."""
        await self._tasks.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BEAT_S):
                await self._try_beat()

    def resume_at(self, position: Position, epoch: int) -> None:
        self._stream.resume_at(position, epoch)

    async def send(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        stream = self._stream
        stream.require_room()
        if stream.position is None:
            raise Retry("the stream has no position yet: a gap record is not acknowledged")
        submitted = time.monotonic()
        await self._worker.run(self._send_commits, stream.sender, stream.position, transactions, submitted)
        for events in transactions:
            stream.acknowledged(events[0].commit)

    async def begin_history(self) -> None:
        gap = await self._stream.begin_history(_REASON)
        await self._worker.run(self._send_gap, gap)
        self._stream.history_begun(gap)
        self.counters["gaps"] += 1

    async def _beat(self) -> None:
        while True:
            await self._context.clock.sleep(self._settings.heartbeat_s)
            await self._try_beat()
            raise_if_cancelled()  # the error of an interrupted beat takes its place

    async def _try_beat(self) -> None:
        try:
            heartbeat = await self._stream.heartbeat()
            if heartbeat is not None:
                await self._worker.run(self._send_heartbeat, heartbeat)
                self.counters["heartbeats"] += 1
                self._problems.worked(_HEARTBEATS)
        except GaveWay:
            log.debug("heartbeat not awaited: a delivery waits")
        except (Retry, RegistryError) as error:
            known = self._problems.get(_HEARTBEATS)
            self._problems.failed(_HEARTBEATS, "heartbeats for followers", str(error))
            (log.warning if known is None else log.debug)("heartbeat not sent", error=str(error))

    def problems(self) -> list[Problem]:
        return self._problems.listed()

    # ---- in the sink's thread -----------------------------------------------------------------------------

    def _send_commits(
        self, sender: Sender, previous: Position, transactions: Sequence[Sequence[Event[Row]]], submitted: float
    ) -> None:
        self._outbox.begin(submitted)
        limit = self._largest_record()
        for events in transactions:
            position = events[0].commit.position
            record: RecordId = (position,)
            if not self._outbox.knows(record):
                value = encode_transaction(sender, previous, events, limit)
                self.counters["unlisted"] += _LISTED not in value[:_HEAD_BYTES]
                self._send(record, value, self._context.traceparent(events[0].commit))
            previous = position
        self._outbox.wait()
        self._outbox.forget()

    def _send_gap(self, gap: StreamMessage) -> None:
        """Waits for the records of the earlier history first: they precede the gap."""
        self._outbox.begin()
        try:
            self._outbox.wait()
        except NotAcknowledged:
            self._outbox.abandon()
            raise
        finally:
            self._outbox.forget()
        self._send((-1, next(self._numbers)), gap.payload)
        self._outbox.wait()

    def _send_heartbeat(self, heartbeat: StreamMessage) -> None:
        """Waits for earlier records first, so that heartbeats do not pile up behind a broker that hangs. A producer
        that does not get a heartbeat acknowledged is replaced: with an idle registry no delivery would ever find out,
        and followers that wait for a heartbeat would wait for good. Records of commits stay with their producer.
        """
        try:
            self._outbox.begin()
            self._outbox.wait(self._worker.awaited)
            self._send((-1, next(self._numbers)), heartbeat.payload)
            self._outbox.wait(self._worker.awaited)
        except NotAcknowledged:
            if not self._outbox.holds_commits and not self._worker.interrupted():
                self._outbox.abandon()
            raise

    def _send(self, record: RecordId, value: bytes, trace: bytes | None = None) -> None:
        headers = NO_HEADERS if trace is None else encode_headers([(TRACE_HEADER, trace)])
        self._outbox.send(record, self._settings.transactions_topic, None, value, headers)
