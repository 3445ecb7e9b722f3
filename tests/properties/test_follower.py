"""Followers of a stream whose leader restarts, is deposed and refreshes, over a transport that loses and repeats.

In the end a follower's rows equal the registry's; no event was applied twice, and none was skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from astha.lanes.snapshot import RefreshedSnapshot
from astha.sources.continuity import Continuity
from registry.position import Position
from tests.properties.follower_model import (
    KEYS,
    TABLE,
    FollowerLedger,
    ModelFollower,
    ModelRegistry,
    ModelSender,
    copied,
)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Thousands of examples would log as many warnings."""
    with capture_logs():
        yield


Transport: TypeAlias = Literal["log", "live"]
Step: TypeAlias = tuple[str, int]

NORMAL = ("commit", "commit", "show", "send", "send", "send", "beat", "progress", "take", "take", "take",
          "deliver", "begin", "end", "acknowledge", "ledger")  # fmt: skip
FAULTS = ("restart", "take over", "zombie", "refresh", "drop", "repeat", "cut", "truncate", "crash", "garbage")

EXAMPLES = int(os.environ.get("ASTHA_FOLLOWER_EXAMPLES", "100"))


def steps(*verbs: str) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.tuples(st.sampled_from(verbs), st.integers(0, 3)), min_size=20, max_size=120)


@dataclass(frozen=True)
class Committed:
    """An offset that was committed to Kafka, with its metadata."""

    offset: int
    position: Position
    epoch: int
    history: str


@dataclass
class SenderLedger:
    at: Position
    owes_refresh: bool = True


class World:
    def __init__(self, transport: Transport, *, durable: bool, max_waiting_bytes: int = 1 << 20) -> None:
        self.transport = transport
        self.durable = durable
        self.max_waiting_bytes = max_waiting_bytes
        self.registry = ModelRegistry()
        self.log: list[bytes] = []
        self.first = 0  # the log is truncated before
        self.next = 0  # the follower's offset
        self.committed: Committed | None = None
        self.zombie: ModelSender | None = None
        self.sender_refreshed: RefreshedSnapshot | None = None  # in the leader's ledger
        self.sender_ledger = SenderLedger(Position(10))
        self.leader = self._lead()
        self.strict = True
        self.ledger = FollowerLedger()
        self.follower = self._start()

    # -- the leader -------------------------------------------------------------------------------------

    def _lead(self) -> ModelSender:
        """What a predecessor had acknowledged is visible by now; see docs/decisions/0021-followers.md."""
        at = self.sender_ledger.at
        self.registry.invisible -= {change.xid for change in self.registry.commits if change.position <= at}
        self.registry.epoch += 1
        leader = ModelSender(self.registry, self.log, self.registry.epoch, self.registry.history, at)
        leader.refreshed = self.sender_refreshed
        if self.sender_ledger.owes_refresh:
            leader.refresh()
        return leader

    def step(self, verb: str, number: int) -> None:
        match verb:
            case "commit":
                self.registry.commit((*KEYS, None)[number])
            case "show":
                self.registry.show(number)
            case "send":
                self.leader.send()
            case "beat":
                self.leader.beat(progress=False)
            case "progress":
                self.leader.beat(progress=True)
            case "ledger":
                self.sender_ledger = SenderLedger(self.leader.at, owes_refresh=False)
                self.sender_refreshed = self.leader.refreshed
            case "restart":
                self.leader = self._lead()
            case "take over":
                self.zombie, self.leader = self.leader, self._lead()
            case "zombie" if self.zombie is not None:
                self._step_of_zombie(self.zombie, number)
            case "refresh":
                self.sender_ledger.owes_refresh = True
                self.leader.refresh()
            case "restore":
                self._restore(number)
            case _:
                self._step_of_follower(verb, number)

    def _step_of_zombie(self, zombie: ModelSender, number: int) -> None:
        """A deposed leader that does not know it yet."""
        match number:
            case 0 | 1:
                zombie.send()
            case 2:
                zombie.beat(progress=True)
            case _:
                zombie.refresh()

    def _restore(self, number: int) -> None:
        """The follower's ledger is in the registry, and is restored to nothing: all its components refresh."""
        self.registry.restore(number)
        self.strict = self.follower.strict = False
        self.zombie = None
        self.sender_ledger = SenderLedger(self.registry.position)
        self.ledger = FollowerLedger()
        self.leader = self._lead()
        self._crash()

    # -- the follower -----------------------------------------------------------------------------------

    def _step_of_follower(self, verb: str, number: int) -> None:
        match verb:
            case "take":
                self.take()
            case "deliver":
                self.follower.deliver()
            case "begin":
                self.follower.begin_refresh()
            case "end":
                self.follower.end_refresh()
            case "acknowledge":
                self._acknowledge()
            case "drop":
                self.next = min(self.next + number, len(self.log))
            case "repeat" if len(self.log) > number:
                self.log.append(self.log[-1 - number])
            case "garbage":
                self.log.append(b'{"kind": "transaction", "epoch": 7'[: number * 12])
            case "cut":
                self.next = len(self.log) if self.transport == "live" else self.next
                self.follower.continuity.interrupted()
            case "truncate":
                self.first = min(self.first + 4 * number, len(self.log))
            case "crash":
                self._crash()

    def take(self) -> bool:
        self.next = max(self.next, self.first)
        if self.next >= len(self.log):
            return False
        payload = self.log[self.next]
        self.next += 1
        stale = self.follower.continuity.stale
        self.follower.take(payload)
        if self.follower.continuity.stale > stale and self.registry.epoch < self.follower.continuity.epoch:
            self.follower.continuity.restart(self.registry.epoch, "restored")
        return True

    def _acknowledge(self) -> None:
        continuity, follower = self.follower.continuity, self.follower
        follower.persist()  # only what is in the ledger is acknowledged
        received = continuity.position
        if continuity.synchronising or received is None or continuity.history is None:
            return
        if self.ledger.position is None or self.ledger.position >= received:
            self.committed = Committed(self.next, received, continuity.epoch, continuity.history)

    def _crash(self) -> None:
        ledger = copied(self.ledger)
        if not self.durable:
            ledger.position = None
        self.ledger = ledger
        if self.transport == "live":
            self.next = len(self.log)
        self.follower = self._start()

    def _start(self) -> ModelFollower:
        continuity = Continuity(frozenset({TABLE}), max_waiting_bytes=self.max_waiting_bytes)
        committed, history = self.committed, self.ledger.history
        if self.transport == "live":
            if history is not None:
                continuity.resume(history)
        elif committed is not None and committed.history == history:
            continuity.resume(committed.history, committed.position, committed.epoch)
            self.next = committed.offset
        else:
            self.next = len(self.log)
        return ModelFollower(self.registry, self.ledger, continuity, strict=self.strict)

    # -- the end ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        self.registry.invisible.clear()
        while self.leader.send():
            pass
        self.leader.beat(progress=True)
        for _ in range(3):
            while self.take():
                self.follower.settle()
            self.leader.beat(progress=True)
        self.follower.settle()

    def check(self) -> None:
        """The follower converges, and then receives what is committed without another refresh."""
        self.settle()
        rows, _ = self.registry.snapshot()
        assert self.follower.live
        assert not self.follower.continuity.synchronising
        assert self.follower.rows == rows
        refreshes = self.follower.refreshes
        self.registry.commit("a")
        self.settle()
        rows, _ = self.registry.snapshot()
        assert self.follower.rows == rows
        assert self.follower.refreshes == refreshes


def run(world: World, history: list[Step]) -> None:
    for verb, number in history:
        world.step(verb, number)
    world.check()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("transport", ["log", "live"])
@settings(max_examples=EXAMPLES)
@given(steps(*NORMAL, *NORMAL, *FAULTS))
def test_rows_equal_the_registry_whatever_is_lost_or_repeated(
    transport: Transport, durable: bool, history: list[Step]
) -> None:
    run(World(transport, durable=durable), history)


@pytest.mark.parametrize("transport", ["log", "live"])
@settings(max_examples=EXAMPLES // 2)
@given(steps(*NORMAL, *NORMAL, *FAULTS, "restore", "restore"))
def test_a_restored_registry_is_noticed(transport: Transport, history: list[Step]) -> None:
    run(World(transport, durable=True), history)


@settings(max_examples=EXAMPLES // 2)
@given(steps(*NORMAL, "drop", "cut", "crash"))
def test_records_that_wait_for_a_heartbeat_are_bounded(history: list[Step]) -> None:
    world = World("log", durable=True, max_waiting_bytes=600)
    for verb, number in history:
        world.step(verb, number)
        assert world.follower.continuity._waiting_bytes <= 600
    world.check()


@settings(max_examples=EXAMPLES // 2)
@given(steps(*NORMAL, *NORMAL, "restart", "take over", "zombie", "crash"))
def test_a_complete_log_never_makes_a_durable_follower_refresh_again(history: list[Step]) -> None:
    """Not even if the leader restarts, provided that its last heartbeat told how far it had come."""
    world = World("log", durable=True)
    world.settle()
    world.step("ledger", 0)
    world.step("acknowledge", 0)
    follower, refreshes = world.follower, world.follower.refreshes
    for verb, drawn in history:
        number = min(drawn, 2) if verb == "zombie" else drawn  # one that refreshes causes refreshes
        if verb in ("restart", "take over"):  # after a last ledger and a last heartbeat
            world.registry.invisible.clear()
            world.step("ledger", number)
            world.step("progress", number)
        world.step(verb, number)
        if world.follower is not follower:
            follower, refreshes = world.follower, 0
        assert follower.refreshes == refreshes
    world.check()
    assert world.follower.refreshes == refreshes
