"""Decides what a follower may deliver: finds missing records, drops repeated ones and those of deposed leaders.

A follower *synchronises* at its start and whenever records are missing: it keeps what arrives, and continues when a
heartbeat says that everything it lacks is visible in the registry. Only then may its components refresh: PostgreSQL
streams a commit a moment before it becomes visible to other sessions, so an earlier snapshot could lack a transaction
that the follower never received either.
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


class Continuity:
    """The state of one follower's stream. Synchronous: transports pass each record to `take`, in order."""

    def __init__(self, tables: frozenset[str], *, max_waiting_bytes: int = _MAX_WAITING_BYTES) -> None:
        self._tables = tables
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[tuple[TransactionRecord, int]] = deque()
        self._waiting_bytes = 0
        self._waiting_end = Position(0)
        self._synchronising = True
        self.epoch = 0
        self.history: str | None = None
        self.group: str | None = None
        self.position: Position | None = None
        """Everything up to here has been received; None before the first record of a new group."""
        self.stale = 0  # records of deposed leaders
        self.malformed = 0

    @property
    def synchronising(self) -> bool:
        return self._synchronising

    def resume(self, position: Position, epoch: int, history: str) -> None:
        """An earlier process of this group had received everything up to `position`."""
        self.position, self.epoch, self.history = position, epoch, history

    def interrupted(self) -> None:
        """The connection was lost: what follows may lack records, and its first heartbeat tells."""
        self._synchronise()

    def restart(self, epoch: int, reason: str) -> Gap:
        """The registry was restored: positions and epochs may be lower than before."""
        self.epoch, self.history = epoch, None
        return self._begin_history(reason)

    def take(self, payload: bytes) -> list[Batch]:
        """Returns what the record allows to pass on, often nothing. Raises ConfigError if the sender does not send a
        table that is subscribed here.
        """
        try:
            record = decode_record(payload)
        except DecodeError as error:
            self.malformed += 1
            log.warning("malformed record ignored; if it was a transaction, a refresh follows", error=str(error))
            return []
        if record.epoch < self.epoch:
            self.stale += 1
            return []
        self._require_tables(record)
        self.epoch, self.group = record.epoch, record.group
        if isinstance(record, GapRecord):
            return self._take_gap(record)
        known, self.history = self.history, record.history
        gap: list[Batch] = []
        if known not in (None, record.history):
            gap = [self._begin_history("the sender has refreshed, and its notice was not received")]
        if isinstance(record, HeartbeatRecord):
            return gap + self._take_heartbeat(record)
        return gap + self._take_transaction(record, len(payload))

    def _require_tables(self, record: StreamRecord) -> None:
        missing = self._tables.difference(record.covers)
        if missing:
            raise ConfigError(
                f"the daemons of group {record.group} do not send changes of {', '.join(sorted(missing))}: "
                "add these tables to their sink's entry in subscriptions.yaml"
            )

    def _begin_history(self, reason: str) -> Gap:
        self.position = None
        self._synchronise()
        return Gap(reason)

    def _take_gap(self, record: GapRecord) -> list[Batch]:
        """The sender's snapshot contains what is missing, so every later snapshot does: no need to synchronise."""
        self._clear_waiting()
        self._synchronising = False
        self.history, self.position = record.history, Position(record.position)
        return [Gap(record.reason), Started(self.position)]

    def _take_heartbeat(self, record: HeartbeatRecord) -> list[Batch]:
        sent = Position(record.position)
        if not self._synchronising:
            if self.position is not None and sent <= self.position:
                return [Progress(self.position)]
            self._synchronise()
        start = self._continue_at(sent)
        if start is None:
            return []
        self.position, self._synchronising = start, False
        batches: list[Batch] = [Started(start)]
        waiting = list(self._waiting)
        self._clear_waiting()
        for transaction, size in waiting:
            batches += self._take_transaction(transaction, size)
        return batches

    def _continue_at(self, sent: Position) -> Position | None:
        """Returns the position from which on nothing is missing, if everything before it is visible by now."""
        if not self._waiting:
            return sent if self.position is None else max(sent, self.position)
        first = Position(self._waiting[0][0].previous)
        if self.position is not None and first <= self.position:
            first = self.position
        return first if first <= sent else None

    def _take_transaction(self, record: TransactionRecord, size: int) -> list[Batch]:
        if self._synchronising or self.position is None:
            return self._wait(record, size)
        if record.position <= self.position:
            return []
        if record.previous > self.position:
            log.warning("records are missing", received=self.position, next=record.previous)
            self._synchronise()
            return self._wait(record, size)
        self.position = Position(record.position)
        transaction = self._decoded(record, size)
        return [[transaction]] if transaction.tables else [Progress(self.position)]

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
