"""What a lane has received and not yet delivered, and the position up to which everything is done."""

from __future__ import annotations

import msgspec

from astha.clock import LoopClock
from astha.events import EventBatch, Transaction
from astha.lanes.queue import LaneQueue
from astha.lanes.snapshot import RefreshedSnapshot
from astha.subscribers.lane_policy import LanePolicy
from registry.position import Position


class RefusedTransaction(msgspec.Struct, frozen=True):
    """A transaction that can't be queued: a refresh has to replace it, or (`overflow`) it found the queue full."""

    reason: str
    overflow: Transaction | None = None


class Intake:
    """Queues transactions while `collecting`. Otherwise they are ignored: the next refresh will contain them.

    A lane that holds may be `behind`: transactions that did not fit its queue have to be read from the source again.
    What the stream brings meanwhile is kept in `ahead`, as far as it fits.
    """

    def __init__(self, policy: LanePolicy, clock: LoopClock) -> None:
        self._policy = policy
        self._clock = clock
        self.queue = LaneQueue(policy.max_events, policy.max_bytes)
        self.position = Position(0)  # everything up to here is done
        self.received = Position(0)  # the stream has come this far
        self.refreshed: RefreshedSnapshot | None = None
        self.collecting = False
        self.stop_reason = "never refreshed"  # why it stopped collecting
        self.overflowed = False  # since collecting began
        self.behind = False
        self.ahead: LaneQueue | None = None
        self.progress_at = 0.0  # when the delivery in progress began, or its first event was queued
        self._new_history = False  # it has begun, and its first position is not known yet

    def offer(self, batch: EventBatch) -> RefusedTransaction | None:
        received = self.received
        self.received = max(received, batch.position)
        if not self.collecting:
            return None
        if self.behind:
            self._offer_ahead(batch, received)
            return None
        if not self.queue:
            self.progress_at = self._clock.monotonic()
        plain = self.refreshed is None and not batch.has_unlisted and batch.first.position > received
        if plain and self.queue.put(batch):
            return None
        for transaction in batch.transactions:
            if (refused := self.accept(transaction, received)) is not None:
                return refused
        return None

    def accept(self, transaction: Transaction, received: Position) -> RefusedTransaction | None:
        """Queues a transaction, unless it repeats one up to `received` or the last refresh contains it."""
        position = transaction.position
        if position <= received:  # repeated after a reconnect
            return None
        refreshed = self.refreshed
        if refreshed is not None:
            if refreshed.splits(transaction):
                return RefusedTransaction(f"the last refresh contained only a part of the transaction at {position}")
            if refreshed.contains(transaction):
                return None
        if transaction.unlisted:
            return RefusedTransaction(f"the transaction at {position} changed too much to be listed event by event")
        if not self.queue.put(EventBatch.of([transaction])):
            self.overflowed = True
            return RefusedTransaction("the queue is full", transaction)
        return None

    def _offer_ahead(self, batch: EventBatch, received: Position) -> None:
        if self.ahead is not None:
            new = [transaction for transaction in batch.transactions if transaction.position > received]
            if new and not self.ahead.put(EventBatch.of(new)):
                self.ahead = None  # starts again with the next batch that is read

    def advance(self, position: Position) -> None:
        """Everything up to `position` is done.

        The refreshed snapshot is kept until this position, not only the stream, has passed it: a restart replays
        from here.
        """
        self.position = position
        if self.refreshed is not None and position >= self.refreshed.until:
            self.refreshed = None

    # -- collecting -------------------------------------------------------------------------------------

    def stop_collecting(self, reason: str) -> None:
        """Discards the queue: a refresh will contain it."""
        self.clear()
        self.collecting = False
        self.stop_reason = reason

    def start_collecting(self) -> Position:
        """From here on the queue collects what a snapshot taken later may lack. Returns the position received."""
        self.clear()
        self.refreshed = None
        self.collecting = True
        self.overflowed = False
        return self.received

    def clear(self) -> None:
        self.queue.clear()
        self.behind, self.ahead = False, None

    def continue_after(self, refreshed: RefreshedSnapshot, start: Position) -> None:
        """Keeps what was collected since `start` and is not in the snapshot. The queue has its own limits again."""
        self.position = start
        self.refreshed = refreshed
        self.queue.keep(lambda transaction: not refreshed.contains(transaction))
        self.queue.max_events, self.queue.max_bytes = self._policy.max_events, self._policy.max_bytes

    def resume_at(self, position: Position, refreshed: RefreshedSnapshot | None) -> None:
        """Everything up to `position` was done before the start."""
        self.position = self.received = position
        self.refreshed = refreshed
        self.collecting = True

    # -- reading again what did not fit -----------------------------------------------------------------

    def collect_ahead(self) -> None:
        """From here on what the stream brings is kept, as far as it fits."""
        self.ahead = LaneQueue(self._policy.max_events, self._policy.max_bytes)

    def catch_up(self) -> RefusedTransaction | None:
        """The source was read up to where `ahead` begins: continues with that."""
        ahead, position = self.ahead or (), self.position
        self.behind, self.ahead = False, None
        self.received = max(self.received, position)
        for transaction in ahead:
            if (refused := self.accept(transaction, position)) is not None:
                return refused
        return None

    # -- histories --------------------------------------------------------------------------------------

    def start_over(self) -> None:
        """Another history begins: its positions can't be compared with those so far."""
        self.position = self.received = Position(0)
        self.refreshed = None
        self._new_history = True

    def started_at(self, position: Position) -> Position | None:
        """The stream brings everything after `position`, some of it maybe again. If it left something out, returns
        the position up to which this lane had received.
        """
        received, self.received = self.received, max(self.received, position)
        new_history, self._new_history = self._new_history, False
        return received if received < position and self.collecting and not new_history else None
