"""The records of layout `transactions`: commits, gaps and heartbeats, in one partition, for followers."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count

import structlog

from astha.events.stream_records import Sender, encode_gap, encode_heartbeat, encode_transaction
from astha.subscribers import BackgroundTasks, ComponentContext, Event, Position, RegistryError, Retry, Row
from components.kafka_sink.errors import NotAcknowledged
from components.kafka_sink.outbox import Outbox, RecordId
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.worker import Worker

log = structlog.get_logger(__name__)

_REASON = "the sink of the transaction stream has refreshed"
_LISTED = b'"events":['
_HEAD_BYTES = 4_096


class TransactionStream:
    """The state of the stream: which history it is in, and up to where it has been sent."""

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
        self._identity = f"transactions/{context.component}"
        self._tasks = BackgroundTasks("kafka sink", context.clock)
        self._history: str | None = None
        self._epoch = 0
        self._sent: Position | None = None  # everything up to here is acknowledged by the broker
        self._invisible: deque[tuple[int, Position]] = deque()  # sent commits not yet known to be visible
        self._numbers = count()
        self.counters: Counter[str] = Counter()

    async def start(self) -> None:
        recorded = await self._context.store.get_source_identity(self._identity)
        self._history = None if recorded is None else recorded.identity
        if not len(self._tasks):
            self._tasks.supervise("heartbeat", self._beat)

    async def stop(self) -> None:
        await self._tasks.stop()

    def resume_at(self, position: Position, epoch: int) -> None:
        self._sent, self._epoch = position, epoch
        self._invisible.clear()

    async def send(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        sender = await self._sender()
        await self._worker.run(self._send_commits, sender, self._sent or Position(0), transactions)
        for events in transactions:
            self._invisible.append((events[0].commit.transaction, events[0].position))
        self._sent = transactions[-1][0].position

    async def begin_history(self) -> None:
        """The new history is recorded first: a crash in between makes followers refresh once more, and no record of the
        new history can carry the old one's id.
        """
        history = secrets.token_hex(16)
        await self._context.store.record_source_identity(self._identity, history)
        self._history = history
        sender = await self._sender()
        await self._worker.run(self._send_gap, sender, self._sent or Position(0))
        self.counters["gaps"] += 1

    async def _sender(self) -> Sender:
        if self._history is None:
            found = await self._context.store.ensure_source_identity(self._identity, secrets.token_hex(16))
            self._history = found.identity
        return Sender(self._context.group, self._epoch, self._history, tuple(sorted(self._context.tables)))

    async def _beat(self) -> None:
        while True:
            await self._context.clock.sleep(self._settings.heartbeat_s)
            try:
                await self._send_heartbeat()
            except (Retry, RegistryError) as error:
                log.debug("heartbeat not sent", error=str(error))

    async def _send_heartbeat(self) -> None:
        """Says that all commits sent so far are visible to every new snapshot. Tried again later if some are not."""
        sent, history = self._sent, self._history
        if sent is None or history is None:
            return
        waiting = len(self._invisible)
        if waiting:
            async with self._context.store.consistent_read() as snapshot:
                visibility = snapshot.visibility
            if not all(visibility.contains(*commit) for commit in list(self._invisible)[:waiting]):
                return
        await self._worker.run(self._send_beat, await self._sender(), sent, history)
        if history == self._history:
            for _ in range(min(waiting, len(self._invisible))):
                self._invisible.popleft()
        self.counters["heartbeats"] += 1

    # ---- in the sink's thread -----------------------------------------------------------------------------

    def _send_commits(self, sender: Sender, previous: Position, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        self._outbox.begin()
        limit = self._largest_record()
        for events in transactions:
            position = events[0].commit.position
            record: RecordId = (position,)
            if not self._outbox.knows(record):
                value = encode_transaction(sender, previous, events, limit)
                self.counters["unlisted"] += _LISTED not in value[:_HEAD_BYTES]
                self._send(record, value)
            previous = position
        self._outbox.wait()
        self._outbox.forget()

    def _send_gap(self, sender: Sender, position: Position) -> None:
        """Waits for the records of the earlier history first: they precede the gap."""
        self._outbox.begin()
        try:
            self._outbox.wait()
        except NotAcknowledged:
            self._outbox.abandon()
            raise
        finally:
            self._outbox.forget()
        self._send((-1, next(self._numbers)), encode_gap(sender, position, _REASON))
        self._outbox.wait()

    def _send_beat(self, sender: Sender, position: Position, history: str) -> None:
        if sender.history != history:
            return
        self._outbox.begin()
        self._send((-1, next(self._numbers)), encode_heartbeat(sender, position))
        self._outbox.wait()

    def _send(self, record: RecordId, value: bytes) -> None:
        self._outbox.send(record, self._settings.transactions_topic, None, value)
