"""The sender's side of a transaction stream for followers, on any transport: what a sink has to know of its records.

It encodes each commit with the position before it, keeps the id of the stream's history in the registry, and decides
when a heartbeat may be sent. The sink sends, and reports what the broker has acknowledged.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from astha.events.stream_records import (
    Sender,
    encode_event,
    encode_gap,
    encode_heartbeat,
    encode_transaction,
    encode_unlisted,
    join_transaction,
)
from astha.subscribers import Commit, ComponentState, Event, MetadataStore, Position, Retry, Row

_LARGE_EVENTS = 200
"""A commit with more events is encoded in steps: 200 events take about half a millisecond."""

_MAX_UNCONFIRMED = 100_000
"""Commits that no snapshot has been seen to contain. There are more only while the registry does not respond."""


class StreamMessage(msgspec.Struct, frozen=True):
    """One record to send. `kind` is "transaction", "gap" or "heartbeat"."""

    kind: str
    payload: bytes
    previous: Position
    position: Position
    generation: int = 0


class TransactionStream:
    """Call `open` at start, `resume_at` when the daemon does, `begin_history` for each refresh. `encode` the commits in
    order, and call `acknowledged` for each when the broker has it.
    """

    def __init__(
        self,
        store: MetadataStore,
        component: str,
        group: str,
        tables: frozenset[str],
        states: Callable[[], Sequence[ComponentState]] = tuple,
    ) -> None:
        """`states` are those of the daemon's components: this one's position says how far it has come."""
        self._store = store
        self._name = f"transactions:{group}:{component}"
        self._component = component
        self._states = states
        self._sender = Sender(group=group, epoch=0, history="", covers=tuple(sorted(tables)))
        self._generation = 0  # of histories and leaders: a heartbeat that began in an earlier one is not sent
        self._unconfirmed: deque[Commit] = deque()
        self.position: Position | None = None
        """The position of the last record that the broker has acknowledged, or where deliveries continue."""

    @property
    def epoch(self) -> int:
        return self._sender.epoch

    @property
    def sender(self) -> Sender:
        """Immutable, for sinks that encode in a thread of their own."""
        return self._sender

    async def open(self) -> None:
        """Reads the history of an earlier process. Until `resume_at` there is nothing to send."""
        self.position = None
        found = await self._store.ensure_source_identity(self._name, _new_history())
        self._begin(history=found.identity)

    def resume_at(self, position: Position, epoch: int) -> None:
        self._begin(epoch=epoch)
        self.position = position

    async def begin_history(self, reason: str) -> StreamMessage:
        """Returns the gap record of a new history, which begins where `resume_at` said. Heartbeats pause until it is
        acknowledged. The registry knows the history first: a crash must not continue the former one.
        """
        position = self.position
        if position is None:
            raise Retry("a refresh began before its position was known")
        self.position = None
        self._begin(history=_new_history())
        await self._store.record_source_identity(self._name, self._sender.history)
        return StreamMessage("gap", encode_gap(self._sender, position, reason), position, position)

    def history_begun(self, gap: StreamMessage) -> None:
        """The broker has the gap record."""
        self.position = gap.position

    async def encode(self, events: Sequence[Event[Row]], previous: Position, max_bytes: int) -> StreamMessage:
        """Yields to other tasks while it encodes a large commit, and gives up early if it exceeds `max_bytes`."""
        if len(events) <= _LARGE_EVENTS:
            payload = encode_transaction(self._sender, previous, events, max_bytes)
        else:
            payload = await self._encode_large(events, previous, max_bytes)
        return StreamMessage("transaction", payload, previous, events[0].position)

    def acknowledged(self, commit: Commit) -> None:
        """The broker has the record of this commit, and all before it."""
        self.position = commit.position
        self._unconfirmed.append(commit)

    def require_room(self) -> None:
        """Raises Retry if too many commits wait for confirmation by a snapshot: memory is bounded."""
        if len(self._unconfirmed) >= _MAX_UNCONFIRMED:
            raise Retry("the registry does not respond: heartbeats for followers can't be sent; check the database")

    async def heartbeat(self) -> StreamMessage | None:
        """Returns a heartbeat, or None if there is none to send now: PostgreSQL streams a commit a moment before other
        sessions see it, and a heartbeat promises that every later snapshot contains it.
        """
        position, generation, commits = self.position, self._generation, len(self._unconfirmed)
        if position is None:
            return None
        reached = self._reached(position)
        if commits and not await self._visible(commits):
            return None
        if generation != self._generation:
            return None
        for _ in range(commits):
            self._unconfirmed.popleft()
        payload = encode_heartbeat(self._sender, reached, position)
        return StreamMessage("heartbeat", payload, position, reached, generation)

    def _reached(self, sent: Position) -> Position:
        """Returns the position up to which there is nothing more to send. A successor may resume there: followers that
        only knew the last transaction would take everything between for missing.
        """
        return max([sent, *(state.position for state in self._states() if state.component == self._component)])

    def is_current(self, heartbeat: StreamMessage) -> bool:
        """Whether the heartbeat may still be sent. Call it immediately before: a refresh may have begun."""
        return heartbeat.generation == self._generation

    async def _visible(self, commits: int) -> bool:
        async with self._store.consistent_read() as snapshot:
            contains = snapshot.visibility.contains
        checked = [self._unconfirmed[number] for number in range(min(commits, len(self._unconfirmed)))]
        return all(contains(commit.transaction, commit.position) for commit in checked)

    async def _encode_large(self, events: Sequence[Event[Row]], previous: Position, max_bytes: int) -> bytes:
        encoded: list[msgspec.Raw] = []
        size = 0
        for number, event in enumerate(events, 1):
            part = encode_event(event)
            encoded.append(part)
            size += len(bytes(part)) + 1
            if size > max_bytes:
                return encode_unlisted(self._sender, previous, events)
            if number % _LARGE_EVENTS == 0:
                await asyncio.sleep(0)
        payload = join_transaction(self._sender, previous, events[0].commit, encoded)
        return payload if len(payload) <= max_bytes else encode_unlisted(self._sender, previous, events)

    def _begin(self, history: str | None = None, epoch: int | None = None) -> None:
        self._generation += 1
        self._unconfirmed.clear()
        self._sender = msgspec.structs.replace(
            self._sender,
            history=self._sender.history if history is None else history,
            epoch=self._sender.epoch if epoch is None else epoch,
        )


def _new_history() -> str:
    return secrets.token_hex(16)
