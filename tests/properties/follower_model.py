"""A model of a registry, a leader that sends its commits, and a follower with one lane.

PostgreSQL streams a commit before other sessions see it, so commits become visible late, and not in order. The lane is
the real intake of lanes, with the real visibility of snapshots; its rows are compared with those of the registry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from astha.clock import SystemLoopClock
from astha.events import Commit, Event, EventBatch, Operation
from astha.events.stream_records import Sender, encode_gap, encode_heartbeat, encode_transaction
from astha.lanes.intake import Intake
from astha.lanes.snapshot import RefreshedSnapshot
from astha.sources.continuity import Continuity
from astha.sources.contract import Batch, Gap, Progress, Started
from astha.subscribers.lane_policy import LanePolicy
from registry.models import ConsumerGroup, Row
from registry.position import Position, XidVisibility

TABLE = ConsumerGroup.table
KEYS = ("a", "b", "c")
UNLIMITED = 1 << 20
START = Position(10)


@dataclass(frozen=True)
class Change:
    """One commit: sets `key` to its own id. Without a key it changes only tables that are not sent."""

    xid: int
    position: Position
    key: str | None
    before: int

    def event(self) -> Event[Row]:
        assert self.key is not None
        commit = Commit(self.xid, self.position, 0, 1)
        data, before = ConsumerGroup(self.key, self.xid, 0), ConsumerGroup(self.key, self.before, 0)
        if self.before == 0:
            return Event(Operation.INSERT, data, None, commit, 0)
        return Event(Operation.UPDATE, data, before, commit, 0)


@dataclass
class ModelRegistry:
    commits: list[Change] = field(default_factory=list)
    invisible: set[int] = field(default_factory=set)
    xid: int = 100
    position: Position = START
    epoch: int = 0  # of the sender's lease
    histories: int = 0
    history: str = "h0"

    def commit(self, key: str | None) -> bool:
        """Returns False if the row's last writer still holds its lock."""
        last = next((change for change in reversed(self.commits) if key is not None and change.key == key), None)
        if last is not None and last.xid in self.invisible:
            return False
        self.xid += 1
        self.position = Position(self.position + 10)
        self.commits.append(Change(self.xid, self.position, key, 0 if last is None else last.xid))
        self.invisible.add(self.xid)
        return True

    def show(self, number: int) -> None:
        if self.invisible:
            self.invisible.discard(sorted(self.invisible)[number % len(self.invisible)])

    def snapshot(self) -> tuple[dict[str, int], RefreshedSnapshot]:
        rows = {change.key: change.xid for change in self.commits if change.key and change.xid not in self.invisible}
        return rows, RefreshedSnapshot(XidVisibility(self.xid + 1, frozenset(self.invisible)), self.position)

    def restore(self, number: int) -> None:
        """Goes back to an earlier state, as from a backup. Later commits get the same positions again."""
        for _ in range(number):
            if self.commits and self.commits[-1].xid not in self.invisible:
                self.position = Position(self.commits.pop().position - 10)
        self.epoch = max(self.epoch - number, 0)


@dataclass
class ModelSender:
    """One leading daemon and its sink. Its ledger is shared by its successors."""

    registry: ModelRegistry
    log: list[bytes]
    epoch: int
    history: str
    at: Position  # its lane's position
    refreshed: RefreshedSnapshot | None = None
    previous: Position = START
    unverified: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.previous = self.at

    @property
    def sender(self) -> Sender:
        return Sender("astha", self.epoch, self.history, (TABLE,))

    def send(self) -> bool:
        for change in self.registry.commits:
            if change.position > self.at:
                self._send(change)
                return True
        return False

    def _send(self, change: Change) -> None:
        self.at = change.position
        if change.key is None:
            return
        contained = self.refreshed is not None and self.refreshed.visibility.contains(change.xid, change.position)
        if contained and self.refreshed is not None and change.position <= self.refreshed.until:
            return
        self.log.append(encode_transaction(self.sender, self.previous, [change.event()], UNLIMITED))
        self.previous = self.at
        self.unverified.append(change)

    def beat(self, *, progress: bool) -> None:
        if any(change.xid in self.registry.invisible for change in self.unverified):
            return
        self.unverified.clear()
        if progress:
            self.log.append(encode_heartbeat(self.sender, self.at, self.previous))
        else:
            self.log.append(encode_heartbeat(self.sender, self.previous))

    def refresh(self) -> None:
        """Its snapshot contains everything that it has received; what was received is its lane's position here."""
        if any(
            change.position <= self.at and change.xid in self.registry.invisible for change in self.registry.commits
        ):
            return
        _, self.refreshed = self.registry.snapshot()
        self.registry.histories += 1
        self.history = self.registry.history = f"h{self.registry.histories}"
        self.previous = self.at
        self.unverified.clear()
        self.log.append(encode_gap(self.sender, self.at, "test"))


@dataclass
class FollowerLedger:
    position: Position | None = None  # None: a refresh is owed
    refreshed: RefreshedSnapshot | None = None
    rows: dict[str, int] = field(default_factory=dict)
    history: str | None = None


class ModelFollower:
    """A process of a follower: `stop` and another one with the same ledger are a restart."""

    def __init__(
        self, registry: ModelRegistry, ledger: FollowerLedger, continuity: Continuity, *, strict: bool
    ) -> None:
        self.registry = registry
        self.ledger = ledger
        self.continuity = continuity
        self.strict = strict  # events fit the rows exactly: false after the registry was restored
        self.rows = dict(ledger.rows)
        self.intake = Intake(LanePolicy(max_events=8, max_bytes=1 << 20), SystemLoopClock())
        self.recent: list[Commit] = []
        self.refreshing: tuple[Position, dict[str, int], RefreshedSnapshot] | None = None
        self.live = ledger.position is not None
        self.streaming = False
        self.refreshes = 0
        if ledger.position is not None:
            self.intake.resume_at(ledger.position, ledger.refreshed)

    def take(self, payload: bytes) -> None:
        for batch in self.continuity.take(payload):
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        match batch:
            case Gap():
                self.recent.clear()
                self.intake.start_over()
                self._stop()
                self.ledger.history = self.continuity.history  # recorded when the refresh is owed
            case Progress(position):
                self._passed(position)
            case Started(position):
                self.streaming = True
                if self.intake.started_at(position) is not None:
                    self._stop()
            case _:
                self.recent += [transaction.commit for transaction in batch]
                if self.intake.offer(EventBatch.of(batch)) is not None:
                    self._stop()
                self._passed(batch[-1].position)

    def _passed(self, position: Position) -> None:
        self.intake.received = max(self.intake.received, position)
        if self.live and not self.intake.queue:
            self.intake.advance(self.intake.received)

    def _stop(self) -> None:
        self.intake.stop_collecting("test")
        self.live = False
        self.ledger.position = None

    def begin_refresh(self) -> None:
        if self.live or not self.streaming or self.refreshing is not None:
            return
        start = self.intake.start_collecting()
        rows, snapshot = self.registry.snapshot()
        if all(snapshot.visibility.contains(commit.transaction, commit.position) for commit in self.recent):
            self.refreshing = (start, rows, snapshot)

    def end_refresh(self) -> None:
        if self.refreshing is None:
            return
        (start, rows, snapshot), self.refreshing = self.refreshing, None
        if self.intake.collecting:
            self.rows, self.live = rows, True
            self.refreshes += 1
            self.intake.continue_after(snapshot, start)
            self.persist()

    def deliver(self) -> None:
        """Delivers one transaction. The component stores the effect and the position in one step."""
        if not self.live or not self.intake.queue:
            return
        batch = self.intake.queue.head(1)
        for event in batch.events:
            assert isinstance(event.data, ConsumerGroup)
            if self.strict:
                before = event.before.created_at if isinstance(event.before, ConsumerGroup) else None
                assert self.rows.get(event.data.group_id) == before, f"{event} over {self.rows}"
            self.rows[event.data.group_id] = event.data.created_at
        self.intake.queue.done()
        self.intake.advance(batch.position)
        self.persist()

    def persist(self) -> None:
        if self.live:
            self.ledger.position, self.ledger.refreshed = self.intake.position, self.intake.refreshed
            self.ledger.rows = dict(self.rows)

    def settle(self) -> None:
        self.end_refresh()
        self.begin_refresh()
        self.end_refresh()
        while self.live and self.intake.queue:
            self.deliver()


def copied(ledger: FollowerLedger) -> FollowerLedger:
    return replace(ledger, rows=dict(ledger.rows))
