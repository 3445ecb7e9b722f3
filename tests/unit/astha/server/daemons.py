"""A daemon that does nothing by itself: its states are set by the test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import cast

from astha.daemon import Daemon, DaemonSettings, NamedSubscriber
from astha.events import Commit, Event, Operation, Transaction
from astha.lanes.state import RestoredLane
from astha.leadership import Leadership, LeaseSettings
from astha.sources.contract import Batch, SourceStatus
from astha.testing import ManualClock, RecordingSubscriber
from registry.contract import MetadataStore
from registry.json_text import JsonText
from registry.models import DaemonLease, LakeTable, Row, Topic
from registry.position import Position

HOLDER = "here:1"
LEADER = "there:2"


class Store:
    """The few verbs that leadership asks for."""

    def __init__(self, clock: ManualClock) -> None:
        self.taken = False
        self._clock = clock

    def _lease(self, holder: str, ttl_ms: int) -> DaemonLease:
        now = self._clock.now_ms()
        return DaemonLease("astha", holder, 7, now, now + ttl_ms)

    async def take_daemon_lease(
        self, _name: str, holder: str, ttl_ms: int, *, dead: DaemonLease | None = None
    ) -> DaemonLease:
        return self._lease(holder, ttl_ms)

    async def get_daemon_lease(self, _name: str) -> DaemonLease:
        return self._lease(LEADER, 1000)


class Silent:
    """A source that has only a status."""

    def __init__(self) -> None:
        self.connected = True
        self.detail: str | None = None
        self.silent_s = 0.1

    async def stream(self, tables: frozenset[str]) -> AsyncGenerator[Batch, None]:
        return
        yield

    def acknowledge(self, position: Position) -> None:
        raise AssertionError("no lane acknowledges here")

    def retained_for(self, position: Position) -> int:
        return 0

    def status(self) -> SourceStatus:
        return SourceStatus(
            connected=self.connected, received=Position(900), acknowledged=Position(800), retained_bytes=300,
            wal_status="reserved", detail=self.detail, server=Position(1000), silent_s=self.silent_s,
        )  # fmt: skip

    async def close(self) -> None: ...


class Stage:
    """The daemon and everything around it."""

    def __init__(self, *components: str) -> None:
        self.clock = ManualClock()
        self.store = cast("MetadataStore", Store(self.clock))
        self.source = Silent()
        self.leadership = Leadership(self.store, LeaseSettings(), HOLDER, self.clock)
        subscribers = [NamedSubscriber(name, RecordingSubscriber("topics", "tables")) for name in components]
        self.daemon = Daemon(self.store, self.source, subscribers, self.leadership, DaemonSettings(), self.clock)

    async def lead(self) -> None:
        """Makes it the leader, with all components live."""
        await self.leadership.acquire()
        for lane in self.daemon.lanes:
            lane.restore(RestoredLane(None, Position(850)))
            lane.serving = True

    def pass_by(self, *transactions: Transaction) -> None:
        """Delivers transactions as if the source had received them."""
        self.daemon._take(list(transactions))


def topics(position: int, *names: str, committed_at: int = 0) -> Transaction:
    return _inserted(position, [Topic(name, 1, None, JsonText('{"a":[1]}'), 1, 2) for name in names], committed_at)


def tables(position: int, *names: str) -> Transaction:
    return _inserted(position, [LakeTable(1, "db", name, "s3://t", 0, 0, 0, 1, "active", 1, 2) for name in names])


def _inserted(position: int, rows: Sequence[Row], committed_at: int = 0) -> Transaction:
    commit = Commit(position, Position(position), committed_at, len(rows))
    events = [Event(Operation.INSERT, row, None, commit, index) for index, row in enumerate(rows)]
    return Transaction(commit, events, frozenset({row.table for row in rows}), 10 * len(rows))
