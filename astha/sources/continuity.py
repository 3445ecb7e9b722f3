"""Decides what a follower may deliver: finds missing records, drops repeated ones and those of deposed leaders.

A follower *synchronises* at its start and whenever records may be missing. If the next record's predecessor has been
received, nothing is missing, and it continues. Otherwise it keeps what arrives until a heartbeat says that everything
it lacks is visible in the registry. Only then may its components refresh: PostgreSQL streams a commit a moment before
it becomes visible to other sessions, so an earlier snapshot could lack a transaction that the follower never received
either. A `Gap` is therefore returned together with the `Started` that follows it, never earlier. For the same reason
a new process waits for a heartbeat even if nothing is missing: what its predecessor received may not be visible yet.
"""

from __future__ import annotations

from collections import deque

import msgspec
import structlog

from astha.errors import ConfigError, DecodeError
from astha.events import Transaction
from astha.events.stream_records import (
    GapRecord,
    HeartbeatRecord,
    StreamRecord,
    TransactionRecord,
    decode_record,
    transaction_of,
)
from astha.sources.contract import Batch, Gap, Progress, Started
from registry.position import Position

log = structlog.get_logger(__name__)

_MAX_WAITING_BYTES = 64 * 1024 * 1024
_FIRST_START = "the first start of this group, or it is not known what was received before"
_NOT_RECEIVED = "the sender has refreshed, and its notice was not received"


class Continuity:
    """The state of one follower's stream. Synchronous: transports pass each record to `take`, in order."""

    def __init__(self, tables: frozenset[str], *, max_waiting_bytes: int = _MAX_WAITING_BYTES) -> None:
        self._tables = tables
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[tuple[TransactionRecord, int]] = deque()
        self._waiting_bytes = 0
        self._waiting_end = Position(0)
        self._synchronising = self._starting = True
        self._owed_gap: str | None = _FIRST_START  # the reason, until the `Started` that it precedes
        self.epoch = 0
        self.history: str | None = None
        self.group: str | None = None
        self.position: Position | None = None
        """Everything up to here has been received; None if that is not known of this history."""
        self.sent = Position(0)  # the highest position of this history that was seen
        self.uncovered: frozenset[str] = frozenset()  # subscribed tables that the last sender does not send
        self.records = 0  # of the leader
        self.stale = 0  # records of deposed leaders
        self.malformed = 0

    @property
    def synchronising(self) -> bool:
        return self._synchronising

    def resume(self, history: str, position: Position | None = None, epoch: int = 0) -> None:
        """What components have done so far belongs to this history. An earlier process of this group had received
        everything up to `position`; without one, each component's own position decides whether it refreshes.
        """
        self.history, self.position, self.epoch = history, position, epoch
        self._owed_gap = None

    def interrupted(self) -> None:
        """The connection was lost: what follows may lack records, and the next record tells."""
        self._synchronise()

    def restart(self, epoch: int, reason: str) -> None:
        """The registry was restored: positions and epochs may be lower than before."""
        self.epoch = epoch
        self._begin_history(None, reason)

    def require_tables(self) -> None:
        """Raises ConfigError if the last sender does not send a table that is subscribed here."""
        if self.uncovered:
            raise ConfigError(
                f"the daemons of group {self.group} do not send changes of {', '.join(sorted(self.uncovered))}: "
                "add these tables to their sink's entry in subscriptions.yaml"
            )

    def take(self, payload: bytes) -> list[Batch]:
        """Returns what the record allows to pass on, often nothing."""
        try:
            record = decode_record(payload)
        except DecodeError as error:
            self.malformed += 1
            log.warning("malformed record ignored; if it was a transaction, a refresh follows", error=str(error))
            return []
        self.group = record.group
        if record.epoch < self.epoch:
            self.stale += 1
            return []
        self.epoch = record.epoch
        self.records += 1
        if not self._covered(record):
            return []
        if isinstance(record, GapRecord):
            return self._take_gap(record)
        if record.history != self.history:
            self._begin_history(record.history, _NOT_RECEIVED)
        self.sent = max(self.sent, Position(record.position))
        if isinstance(record, HeartbeatRecord):
            return self._take_heartbeat(record)
        return self._take_transaction(record, len(payload))

    def _covered(self, record: StreamRecord) -> bool:
        """A log may contain records from before its sender was told to send a table: they are of no use here, but
        later ones are. When the last one lacks the table, `require_tables` raises.
        """
        self.uncovered = self._tables.difference(record.covers)
        if self.uncovered:
            missing = ", ".join(sorted(self.uncovered))
            self._begin_history(None, f"changes of {missing} were not sent")
        return not self.uncovered

    def _begin_history(self, history: str | None, reason: str) -> None:
        """Positions of this history can't be compared with those before."""
        self._owed_gap = self._owed_gap or reason
        self.history, self.position, self.sent = history, None, Position(0)
        self._synchronise()

    def _take_gap(self, record: GapRecord) -> list[Batch]:
        """The sender's snapshot contains what is missing, so every later snapshot does: no need to synchronise."""
        position = Position(record.position)
        if record.history == self.history and self.position is not None and position <= self.position:
            return []  # repeated
        self._clear_waiting()
        self._owed_gap = record.reason
        self.history, self.sent = record.history, position
        return self._start(position)

    def _take_heartbeat(self, record: HeartbeatRecord) -> list[Batch]:
        sent, received = Position(record.position), self.position
        if not self._synchronising:
            if received is not None and record.previous <= received:
                self.position = max(received, sent)
                return [Progress(self.position)]
            self._note_missing(record)
        if record.previous > self._waiting_end:
            self._clear_waiting()  # records between are missing
        first = self._waiting[0][0].previous if self._waiting else record.previous
        if received is None or first > received:
            start = Position(first) if self._waiting else sent
            return self._start(start) if start <= sent else []  # what came before may not be visible yet
        if self._starting and sent < received:
            return []
        return [*self._start(received), *self._advance(sent)]

    def _advance(self, sent: Position) -> list[Batch]:
        """After a heartbeat whose predecessor was received: there is nothing to send up to `sent`."""
        if self._synchronising or self.position is None or sent <= self.position:
            return []
        self.position = sent
        return [Progress(sent)]

    def _start(self, position: Position) -> list[Batch]:
        """Nothing after this position is missing, up to what waits; everything before is visible, or was received."""
        batches: list[Batch] = [] if self._owed_gap is None else [Gap(self._owed_gap)]
        batches.append(Started(position))
        self.position, self._owed_gap = position, None
        self._synchronising = self._starting = False
        waiting = list(self._waiting)
        self._clear_waiting()
        for record, size in waiting:
            batches += self._take_transaction(record, size)
        return batches

    def _take_transaction(self, record: TransactionRecord, size: int) -> list[Batch]:
        received = self.position
        if received is None or record.previous > received or self._starting:
            if not self._synchronising:
                self._note_missing(record)
            return self._wait(record, size)
        started: list[Batch] = []
        if self._synchronising:
            self._clear_waiting()  # sent again, by a sender that has restarted
            started = self._start(received)
        if record.position <= received:
            return started
        self.position = Position(record.position)
        transaction = self._decoded(record, size)
        return [*started, [transaction] if transaction.tables else Progress(self.position)]

    def _note_missing(self, record: StreamRecord) -> None:
        log.warning("records are missing: components refresh", received=self.position, next_after=record.previous)
        self._synchronise()

    def _wait(self, record: TransactionRecord, size: int) -> list[Batch]:
        """Keeps the record until a heartbeat. Too many records make it start over with the newest."""
        if record.previous > self._waiting_end:
            self._clear_waiting()  # records between are missing
        self._waiting_end = max(self._waiting_end, Position(record.position))
        self._waiting.append((record, size))
        self._waiting_bytes += size
        if self._waiting_bytes > self._max_waiting_bytes:
            self._clear_waiting()
        return []

    def _decoded(self, record: TransactionRecord, size: int) -> Transaction:
        try:
            return transaction_of(record, self._tables, size)
        except DecodeError as error:
            self.malformed += 1
            log.error("rows can't be decoded: their subscribers refresh", error=str(error))
            tables = tuple({event.table for event in record.events} | set(record.unlisted))
            return transaction_of(msgspec.structs.replace(record, events=(), unlisted=tables), self._tables, size)

    def _synchronise(self) -> None:
        self._clear_waiting()
        self._synchronising = True

    def _clear_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._waiting_end = Position(0)
