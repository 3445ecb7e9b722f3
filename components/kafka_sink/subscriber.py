"""The subscriber: one class per layout, over what both share."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import structlog

from astha.subscribers import (
    CheckResult,
    Component,
    ComponentContext,
    ConsistentRead,
    Event,
    Metric,
    Position,
    Problem,
    Retry,
    Row,
    Work,
)
from components.kafka_sink.batch_producer import BatchProducer
from components.kafka_sink.client import KafkaClients
from components.kafka_sink.health import BrokerHealth
from components.kafka_sink.outbox import Outbox
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.table_records import TableRecords
from components.kafka_sink.table_refresh import TableRefresh
from components.kafka_sink.topics import specs
from components.kafka_sink.transaction_records import TransactionRecords
from components.kafka_sink.worker import Worker
from components.lib.change_formats import Origin
from components.lib.problem_tracker import ProblemTracker

log = structlog.get_logger(__name__)

_CLOSE_S = 3.0
_STUCK_S = 300.0


class KafkaSink(Component):
    """kafka-python blocks, so it runs in two threads: one for deliveries and refreshes, one for health checks."""

    durable = True

    def __init__(self, settings: KafkaSinkSettings, context: ComponentContext) -> None:
        self._settings = settings
        self._context = context
        self._clock = context.clock
        name = context.component or "kafka_sink"
        self._clients = KafkaClients(settings, name)
        self._worker = Worker(f"{name}-send")
        self._health_worker = Worker(f"{name}-health")
        self._outbox = Outbox(settings, self._open_producer, self._worker.interrupted)
        wanted = specs(settings, context.tables)
        self._health = BrokerHealth(settings, self._clients, wanted, self._health_worker, context.clock)
        self._position = Position(0)
        self._epoch = 0
        self._counters: Counter[str] = Counter()
        self._acknowledge_s = 0.0

    def _open_producer(self) -> BatchProducer:
        return BatchProducer(self._clients.producer())

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return self._context.tables

    async def start(self) -> None:
        await self._health.prepare()
        await self._worker.run(self._outbox.begin)

    async def stop(self) -> None:
        with suppress(Retry):
            await self._worker.clean_up(self._outbox.close, _CLOSE_S)
        await self._health.close()
        self._worker.close()
        self._health_worker.close()

    async def check(self) -> list[CheckResult]:
        """Connects to the broker, for `astha check`."""
        return [await self._health.inspect()]

    def resume_at(self, position: Position, epoch: int) -> None:
        self._position, self._epoch = position, epoch

    async def on_health(self) -> bool:
        return await self._health.check()

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        began = self._clock.monotonic()
        try:
            with self._context.span("send to Kafka", "producer", layout=self._settings.layout):
                await self._deliver(transactions)
        except Retry as error:
            self._counters["failed_attempts"] += 1
            if self._health.trouble is not None:
                raise Retry(f"{error}; {self._health.trouble}") from error
            raise
        taken = self._clock.monotonic() - began
        self._counters["deliveries"] += 1
        self._acknowledge_s += taken
        rest_s = self._settings.least_interval_s - taken
        if rest_s > 0:
            await self._clock.sleep(rest_s)

    def problems(self) -> Iterator[Problem]:
        yield from ()

    @abstractmethod
    async def _deliver(self, transactions: Sequence[Sequence[Event[Row]]]) -> None: ...

    def metrics(self) -> Iterator[Metric]:
        outbox = self._outbox.counters
        for name, help_text, value in (
            ("records", "Records acknowledged by the broker.", outbox["records"]),
            ("bytes", "Bytes of keys and values in acknowledged records.", outbox["bytes"]),
            ("producer_failures", "Errors after which the producer was replaced.", outbox["producer_failures"]),
            ("deliveries", "Batches of commits whose records were all acknowledged.", self._counters["deliveries"]),
            ("acknowledge_seconds", "Time from a batch to its last acknowledgement, in total.", self._acknowledge_s),
            ("failed_attempts", "Attempts to deliver that failed and are repeated.", self._counters["failed_attempts"]),
        ):
            yield Metric(name, help_text, value, kind="counter")
        help_text = "1 while the broker and the topics can be used, by the last health check."
        yield Metric("broker_connected", help_text, self._health.usable, {"broker": "kafka"})


class TableSink(KafkaSink):
    """Layout `tables`."""

    def __init__(self, settings: KafkaSinkSettings, context: ComponentContext) -> None:
        super().__init__(settings, context)
        self._problems = ProblemTracker(context.clock)
        self._records = TableRecords(settings, self._outbox, context.clock.now_ms, self._leave_out, context.traceparent)
        self._origin: Origin | None = None
        self._progress_at: float | None = None

    async def _deliver(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        self._records.max_bytes = self._health.largest_record
        submitted = time.monotonic()
        await self._worker.run(self._records.send_commits, transactions, self._current_origin(), submitted)

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        await self._health.prepare()
        self._records.max_bytes = self._health.largest_record
        self._problems.keep(lambda key: False)
        partitions = {
            table: self._health.topics[self._settings.topic_of(table)].partitions for table in self.subscribed_tables
        }
        refresh = TableRefresh(
            self._settings, self._clients, self._worker, self._outbox, self._records, self._note_progress
        )
        self._note_progress("refreshes", 1)
        try:
            await refresh.run(snapshot, partitions, self._current_origin(), self._position)
        finally:
            self._progress_at = None

    def problems(self) -> Iterator[Problem]:
        yield from self._problems.listed()

    def work(self) -> Iterator[Work]:
        if self._progress_at is not None:
            yield Work("refresh of topics", self._clock.monotonic() - self._progress_at, _STUCK_S)

    def metrics(self) -> Iterator[Metric]:
        yield from super().metrics()
        for name, help_text in (
            ("refreshes", "Refreshes begun."),
            ("refresh_keys", "Records read from topics to find deleted rows."),
            ("refresh_rows", "Rows sent by refreshes."),
            ("refresh_tombstones", "Tombstones sent by refreshes."),
            ("records_too_large", "Records left out because they are larger than their topic allows."),
        ):
            yield Metric(name, help_text, self._counters[name], kind="counter")

    def _current_origin(self) -> Origin:
        origin = self._origin
        if origin is None or origin.epoch != self._epoch:
            settings = self._settings
            origin = self._origin = Origin(settings.prefix, self._context.group, self._epoch, self._context.database)
        return origin

    def _note_progress(self, what: str, count: int) -> None:
        """Called from the sending thread, too."""
        self._counters[what] += count
        self._progress_at = self._clock.monotonic()

    def _leave_out(self, table: str, key: bytes) -> None:
        self._counters["records_too_large"] += 1
        shown = key[:200].decode(errors="replace")
        reason = (
            f"the row {shown} is larger than its topic allows and was not sent: raise max.message.bytes of the topic "
            "and `max_request_bytes`, then refresh this component"
        )
        self._problems.failed((table,), f"topic {self._settings.topic_of(table)}", reason)
        log.error("record left out", table=table, key=shown, limit=self._records.max_bytes)


class TransactionSink(KafkaSink):
    """Layout `transactions`."""

    def __init__(self, settings: KafkaSinkSettings, context: ComponentContext) -> None:
        super().__init__(settings, context)
        self._stream = TransactionRecords(
            settings, context, self._worker, self._outbox, lambda: self._health.largest_record
        )

    async def start(self) -> None:
        await super().start()
        await self._stream.start()

    async def stop(self) -> None:
        await self._stream.stop()
        await super().stop()

    def resume_at(self, position: Position, epoch: int) -> None:
        super().resume_at(position, epoch)
        self._stream.resume_at(position, epoch)

    async def _deliver(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        await self._stream.send(transactions)

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Followers read the registry themselves: they only learn that they have to."""
        await self._health.prepare()
        await self._stream.begin_history()

    def problems(self) -> Iterator[Problem]:
        yield from self._stream.problems()

    def metrics(self) -> Iterator[Metric]:
        yield from super().metrics()
        for name, help_text in (
            ("heartbeats", "Heartbeats acknowledged by the broker."),
            ("gaps", "Gap records sent: one per refresh."),
            ("unlisted", "Commits too large for a record, sent as a list of their tables."),
        ):
            yield Metric(name, help_text, self._stream.counters[name], kind="counter")


def create_sink(settings: KafkaSinkSettings, context: ComponentContext) -> KafkaSink:
    kinds: dict[str, Callable[[KafkaSinkSettings, ComponentContext], KafkaSink]] = {
        "tables": TableSink,
        "transactions": TransactionSink,
    }
    return kinds[settings.layout](settings, context)
