"""`MqttSink`: what the daemon calls."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import partial

from astha.subscribers import (
    PUBLISHED,
    BackgroundTasks,
    CheckResult,
    Commit,
    ComponentContext,
    ConsistentRead,
    Event,
    Metric,
    Position,
    Problem,
    Row,
)
from components.lib.change_formats import Origin, open_format
from components.lib.transaction_stream import TransactionStream
from components.mqtt_sink.errors import BrokerUnusable, PublishRefused
from components.mqtt_sink.followers import Heartbeats
from components.mqtt_sink.link import Batch, Link
from components.mqtt_sink.messages import ChangeMessages, record_publication, refresh_publication
from components.mqtt_sink.session import Session
from components.mqtt_sink.settings import MqttSettings
from components.mqtt_sink.states import DaemonState, StateReporter
from components.mqtt_sink.topics import Topics

_GRACE_S = 2.0
"""The sink stays healthy for so long without a connection: a broker that restarts is back in that time."""

_RECORD_OVERHEAD = 300  # properties of a record


class MqttSink:
    durable = True

    def __init__(self, settings: MqttSettings, context: ComponentContext) -> None:
        context.redact(*settings.secrets())
        self._settings = settings
        self._context = context
        self._topics = Topics(settings.prefix, settings.keys_in_topics)
        client_id = settings.client_id or f"astha-{context.component}-{secrets.token_hex(8)}"
        daemon = DaemonState(context, self._topics, client_id)
        self._session = Session(settings, client_id, daemon.will(), context.clock, context.component)
        self._states = StateReporter(context, self._session, self._topics, daemon)
        self._stream: TransactionStream | None = None
        if settings.transactions:
            self._stream = TransactionStream(
                context.store, context.component, context.group, context.tables, context.component_states
            )
        self._heartbeats = Heartbeats(context.clock, self._session, self._topics, settings.heartbeat_s)
        self._tasks = BackgroundTasks(context.component, context.clock)
        self._changes: ChangeMessages | None = None
        self._batch: Batch | None = None
        self._resumed_at = Position(0)
        self._done: tuple[Position, int] = (Position(0), 0)  # messages of this commit that are acknowledged
        self._epoch = 0
        self._sent = dict.fromkeys(("change", "read", "transaction", "gap"), 0)
        self._refused = 0

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return self._context.tables

    async def start(self) -> None:
        """Does not wait for the broker: deliveries do."""
        if self._stream is not None:
            await self._stream.open()
            self._tasks.supervise("heartbeats", partial(self._heartbeats.run, self._stream))
        self._batch = None
        self._session.start()
        self._tasks.supervise("states", self._states.run)

    def resume_at(self, position: Position, epoch: int) -> None:
        self._resumed_at, self._done = position, (position, 0)
        self._epoch = self._states.epoch = epoch
        if self._stream is not None:
            self._stream.resume_at(position, epoch)
        if self._settings.changes:
            origin = Origin(self._settings.prefix, self._context.group, epoch, self._context.database)
            oversized = 0 if self._changes is None else self._changes.oversized
            self._changes = ChangeMessages(
                open_format(self._settings, "mqtt"), self._topics, origin, self._context.clock
            )
            self._changes.oversized = oversized

    async def stop(self) -> None:
        """Takes a few seconds if the broker does not respond. A cancelled call closes the connection too."""
        try:
            await self._tasks.stop()
            if self._stream is not None:
                await self._heartbeats.last(self._stream)
            await self._states.farewell()
        finally:
            await self._session.stop()

    async def check(self) -> list[CheckResult]:
        """Connects with an identifier of its own: a daemon that runs keeps its connection."""
        name, broker = "mqtt broker", self._settings.address
        try:
            link = await Link.connect(self._settings, f"astha-check-{secrets.token_hex(8)}", None, self._context.clock)
        except BrokerUnusable as error:
            return [CheckResult(name, str(error), "start the broker, or correct the settings of the component")]
        await link.close()
        return [CheckResult(name, f"{broker} accepts the connection")]

    async def on_health(self) -> bool:
        self._session.require_connection(_GRACE_S)
        return True

    # -- deliveries --------------------------------------------------------------------------------------

    async def on_transactions(self, transactions: Sequence[Sequence[Event[Row]]]) -> None:
        """What the broker has acknowledged of an earlier attempt is not sent again."""
        batch = await self._begin_batch()
        previous = Position(0)
        if self._stream is not None:
            self._stream.require_room()
            previous = self._stream.position or self._resumed_at
        try:
            with self._context.span("send to MQTT", "producer"):
                for events in transactions:
                    if events[0].position >= self._done[0]:
                        await self._send(batch, events, previous)
                        previous = events[0].position
                await batch.acknowledged()
        except PublishRefused:
            self._refused += 1
            raise

    async def _begin_batch(self) -> Batch:
        """A call that was cancelled may have left messages in flight: what they achieve counts first."""
        former = self._batch
        if former is not None and former.link.error is None:
            await former.settled()
        self._batch = Batch(await self._session.link())
        return self._batch

    async def _send(self, batch: Batch, events: Sequence[Event[Row]], previous: Position) -> None:
        """Sends the record of a commit, then its changes."""
        commit = events[0].commit
        done = self._done[1] if self._done[0] == commit.position else 0
        number, trace = 0, self._context.traceparent(commit)
        if self._stream is not None:
            number = 1
            if done < 1:
                await self._send_record(batch, self._stream, events, previous, trace)
        if self._changes is None:
            return
        for event in events:
            for message in self._changes.of(event, batch.link, trace):
                number += 1
                if number > done:
                    await batch.publish(message, partial(self._acknowledged_change, commit.position, number))

    async def _send_record(
        self,
        batch: Batch,
        stream: TransactionStream,
        events: Sequence[Event[Row]],
        previous: Position,
        trace: bytes | None,
    ) -> None:
        limit = batch.link.payload_limit(self._topics.transactions, _RECORD_OVERHEAD)
        record = await stream.encode(events, previous, limit)
        publication = record_publication(self._topics, record, self._epoch, trace)
        await batch.publish(publication, partial(self._acknowledged_record, stream, events[0].commit))

    def _acknowledged_record(self, stream: TransactionStream, commit: Commit) -> None:
        stream.acknowledged(commit)
        self._done = (commit.position, 1)
        self._sent["transaction"] += 1

    def _acknowledged_change(self, position: Position, number: int) -> None:
        self._done = (position, number)
        self._sent["change"] += 1

    # -- refresh -----------------------------------------------------------------------------------------

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        """Followers refresh from the registry: they get one gap record. Readers of changes get every row."""
        try:
            if self._stream is not None:
                gap = await self._stream.begin_history("the sender has refreshed")
                batch = await self._begin_batch()
                await batch.publish(record_publication(self._topics, gap, self._epoch))
                await batch.acknowledged()
                self._stream.history_begun(gap)
                self._sent["gap"] += 1
            if self._changes is not None:
                await self._read_all(snapshot, self._changes)
        except PublishRefused:
            self._refused += 1
            raise

    async def _read_all(self, snapshot: ConsistentRead, changes: ChangeMessages) -> None:
        batch = await self._begin_batch()
        refresh = secrets.token_hex(8)
        content = {
            "group": self._context.group,
            "epoch": self._epoch,
            "position": self._resumed_at,
            "tables": sorted(self._context.tables),
        }
        await batch.publish(refresh_publication(self._topics, "BEGIN", refresh, content))
        rows = await self._read_rows(snapshot, changes, batch, refresh)
        await batch.publish(refresh_publication(self._topics, "END", refresh, {**content, "rows": rows}))
        await batch.acknowledged()

    async def _read_rows(
        self, snapshot: ConsistentRead, changes: ChangeMessages, batch: Batch, refresh: str
    ) -> dict[str, int]:
        """Returns the number of rows by table. The last row of all is marked, so one row is always held back."""

        trace = self._context.traceparent()

        async def publish(row: Row, last: bool) -> None:
            message = changes.read(row, self._resumed_at, refresh, last, batch.link, trace)
            await batch.publish(message)
            self._sent["read"] += 1

        rows: dict[str, int] = {}
        held: Row | None = None
        for kind in PUBLISHED:
            if kind.table not in self._context.tables:
                continue
            rows[kind.table] = 0
            async for page in snapshot.rows(kind):
                rows[kind.table] += len(page)
                for row in page:
                    if held is not None:
                        await publish(held, False)
                    held = row
        if held is not None:
            await publish(held, True)
        return rows

    # -- reports -----------------------------------------------------------------------------------------

    def problems(self) -> Iterable[Problem]:
        return [*self._states.problems(), *self._heartbeats.problems()]

    def metrics(self) -> Iterable[Metric]:
        sent = {**self._sent, "heartbeat": self._heartbeats.messages, "state": self._states.messages}
        for kind, number in sent.items():
            yield Metric("messages_total", "Messages acknowledged by the broker.", number, {"kind": kind}, "counter")
        yield Metric("refused_total", "Deliveries that the broker refused.", self._refused, kind="counter")
        oversized = 0 if self._changes is None else self._changes.oversized
        yield Metric("oversized_total", "Changes sent without payload: too large.", oversized, kind="counter")
        yield Metric("connections_total", "Connections opened.", self._session.connections, kind="counter")
        link: Link | None = self._session.current
        help_text = "1 while there is a connection to the broker."
        yield Metric("broker_connected", help_text, float(link is not None), {"broker": "mqtt"})
        yield Metric("in_flight", "Messages not yet acknowledged.", 0 if link is None else link.in_flight)
