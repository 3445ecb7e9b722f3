"""The decider: counts, judges, orders and remembers. It reads nothing but what `load` and `restore` are given.

decider.apply(events)            one transaction: counted, and every partition that it moved judged
candidate = decider.take()       the most worthwhile one that may begin now; it is out of the queue and runs
decider.spend(bytes)             its plan is made: so much will be rewritten
decider.finish(candidate, ...)   however it ended; what is left of the partition is judged again
decider.untold()                 decisions for the journal
decider.wakes_at()               when time alone changes something
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from astha.errors import Reject
from astha.events import Event, Operation
from components.compactor.planning.file_selection import Plan
from components.compactor.scheduling.backoff import Ending, Patience
from components.compactor.scheduling.budget import HOUR_MS, Budget, Limits
from components.compactor.scheduling.counter_sync import Drift, read_counts
from components.compactor.scheduling.counters import Counters, Key
from components.compactor.scheduling.journal import Decision, Journal
from components.compactor.scheduling.policy import Policy
from components.compactor.scheduling.policy_cache import Known, Tables
from components.compactor.scheduling.queue import Queue
from components.compactor.scheduling.scoring import DISABLED, OVER, SETTINGS, Heap, Verdict, judge
from registry.clock import Clock
from registry.contract import ConsistentRead, MetadataStore
from registry.models import CompactionTrigger, LakeTable, Row, TableFile, TableMetadata
from registry.position import Position, SnapshotVisibility

_AT_ONCE = 500
"""Partitions that are judged without a pause: some 10 ms."""


_INTRODUCTION_MS = 1_000
"""Between two looks at what was decided of a table that nobody has read yet."""


class Candidate(msgspec.Struct, frozen=True):
    """A partition to be compacted, and the decision that says so."""

    key: Key
    decision: Decision
    waited_ms: int


class Decider:
    def __init__(self, defaults: Policy, limits: Limits, clock: Clock, *, tables_life_ms: int = 10_000) -> None:
        self._clock = clock
        self.tables = Tables(defaults, tables_life_ms)
        self.counters = Counters(defaults.min_age_ms)
        self.queue = Queue()
        self.budget = Budget(limits, clock.now_ms())
        self.journal = Journal()
        self._patience = Patience()
        self._drift = Drift()
        self._decisions: dict[Key, Decision] = {}  # of what is in the queue
        self._running: dict[Key, set[str]] = {}  # and the swaps seen of it
        self._owed: dict[Key, tuple[int, set[str]]] = {}  # swaps done, and seen, of what has ended
        self._unjudged: deque[Key] = deque()
        self._new: list[Decision] = []
        self._since: dict[Key, int] = {}  # when those began to wait that waited at the last restart
        self._contained: SnapshotVisibility | None = None  # what was counted from the registry
        self._contained_until_us = 0  # transaction ids come round again: later commits are not in it, whatever it says
        self._applied: Position | None = None

    # ---- in ---------------------------------------------------------------------------------------------------

    def apply(self, events: Sequence[Event[Row]]) -> list[Decision]:
        """One whole transaction; the decisions that it brought. One that was counted already changes nothing.

        Reject if statistics and counts no longer move together: a refresh counts anew.
        """
        first = events[0]
        position = first.position
        if self._applied is not None and position <= self._applied:
            return []
        if self._contained is not None:
            if first.committed_at > self._contained_until_us:
                self._contained = None
            elif self._contained.contains(first.transaction, position):
                return []
        self._applied = position
        moved: set[Key] = set()
        for event in events:
            file = event.data
            if isinstance(file, TableFile):
                moved |= self.counters.apply(event)  # type: ignore[arg-type]  # of that row
                if file.operation == "compaction" and event.operation is Operation.INSERT:
                    self._see_swap((file.table_id, file.partition_path), file.operation_id or "")
        wrong = self._drift.check(self.counters, events)
        if wrong is not None:
            raise Reject(f"the compactor's counts are not the registry's, they are read again: {wrong}")
        for key in moved:
            self.tables.move(key[0])
            self._consider(key, "event", position)
        return self._news()

    async def load(self, snapshot: ConsistentRead) -> list[Decision]:
        """From the registry, streamed. If reading fails, everything is as before. What runs goes on."""
        now = self._clock.now_ms()
        counted = await read_counts(snapshot, self.tables, now)
        self.counters, self._drift = counted.counters, counted.drift
        self._contained, self._applied = snapshot.visibility, None
        self._contained_until_us = (now + HOUR_MS) * 1000
        for table_id in {*self.tables.known(), *(key[0] for key in self.journal.standing())} - counted.tables:
            self.forget(table_id)
        for number, key in enumerate({*self.counters, *(entry.key for entry in self.queue), *self.journal.standing()}):
            self._consider(key, "refresh", None)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # others share the loop
        self._since.clear()
        return self._news()

    async def restore(self, store: MetadataStore) -> None:
        """What the journal knows from before: what stands, since when it waits, what was spent in the last hour."""
        now = self._clock.now_ms()
        before: tuple[int, int] | None = None
        while rows := await store.list_compactions(statuses=("waiting", "declined"), before=before):
            self.journal.load(rows)
            self._since |= {
                (row.table_id, row.partition_path): row.decided_at for row in rows if row.status == "waiting"
            }
            before = (rows[-1].decided_at, rows[-1].id)
        spent = []
        before = None
        while rows := await store.list_compactions(started_since=max(0, now - HOUR_MS), before=before):
            spent += [(row.started_at or 0, row.input_bytes) for row in rows]
            before = (rows[-1].decided_at, rows[-1].id)
        self.budget.restore(spent, now)

    def introduce(self, table: LakeTable, metadata: TableMetadata) -> Known:
        """A table as it was read now. What its settings change is judged again."""
        now = self._clock.now_ms()
        before, new = self.tables.of(table.id), self.tables.name(table.id) is None
        known = self.tables.introduce(table, metadata, now)
        tuned = self.counters.tune(table.id, known.policy.min_age_ms, now)
        if (
            new
            or tuned
            or (before.policy, before.active, before.problem) != (known.policy, known.active, known.problem)
        ):
            self._unjudged.extend((table.id, path) for path in self.counters.paths(table.id))
            self._catch_up()
        return known

    def forget(self, table_id: int) -> None:
        """The table is gone."""
        self.tables.forget(table_id)
        self.journal.forget(table_id)
        self.counters.forget(table_id)
        for entry in [entry for entry in self.queue if entry.key[0] == table_id]:
            self._leave(entry.key)

    # ---- out --------------------------------------------------------------------------------------------------

    def take(self) -> Candidate | None:
        """Whoever takes it must `finish` it."""
        now = self._clock.now_ms()
        self._catch_up()
        for key in self.queue.release(now):
            self._consider(key, "event", None)
        while self.budget.allows(now) and (entry := self.queue.first()) is not None:
            key = entry.key
            decision = self._decisions[key]
            if self._consider(key, decision.trigger, decision.position) is None or self.queue.first() != entry:
                continue
            decision = self._decisions[key]
            self._leave(key)
            self._running[key] = set()
            self._owed.pop(key, None)
            self.journal.begun(key)
            self.budget.begin()
            return Candidate(key, decision, now - entry.since_ms)
        return None

    def spend(self, size_bytes: int) -> None:
        self.budget.spend(size_bytes, self._clock.now_ms())

    def finish(
        self, candidate: Candidate, ending: Ending, *, swaps: int | None = None, verdict: Verdict | None = None
    ) -> None:
        """``swaps``: how many it did, one if it is done and does not say. Until their events have come, the counts
        are those from before, and the partition is left alone.
        """
        key, now = candidate.key, self._clock.now_ms()
        seen = self._running.pop(key)
        self.budget.end()
        owed = int(ending == "done") if swaps is None else swaps
        if ending != "done":
            self._patience.note(key, ending, now, verdict)
        elif len(seen) < owed:
            self._owed[key] = (owed, seen)
            self._patience.note(key, "done", now)
        else:
            self._patience.forget(key)
        self._consider(key, "event", None)

    def decline(self, candidate: Candidate, plan: Plan) -> None:
        """Its plan found nothing to do."""
        small = Heap(plan.small + plan.young)
        verdict = Verdict(status="declined", rule=plan.rule, reason=plan.reason, small=small, until_ms=plan.ripe_at)
        self.finish(candidate, "declined", verdict=verdict)

    def untold(self, limit: int = 1_000) -> list[Decision]:
        """For the journal; `journal.put_back` them if they can't be written."""
        return self.journal.take(lambda table_id: self.tables.name(table_id) is not None, limit)

    def wakes_at(self) -> int | None:
        """When `take` may answer otherwise without an event, in epoch milliseconds."""
        now = self._clock.now_ms()
        if self._unjudged:
            return now
        times = [self.queue.next_release_ms(), None if self.queue.first() is None else self.budget.allows_at(now)]
        return min((time for time in times if time is not None), default=None)

    def runs(self, key: Key) -> bool:
        """Taken, and not finished."""
        return key in self._running

    def waiting(self) -> tuple[int, int]:
        """Partitions that wait, and the bytes that they would rewrite."""
        return len(self.queue), sum(decision.verdict.picked.size_bytes for decision in self._decisions.values())

    def _catch_up(self) -> None:
        """Judge what other settings have left open, so many at once."""
        for _ in range(min(_AT_ONCE, len(self._unjudged))):
            self._consider(self._unjudged.popleft(), "event", None)

    def _news(self) -> list[Decision]:
        news, self._new = self._new, []
        return news

    def _see_swap(self, key: Key, operation_id: str) -> None:
        if key in self._running:
            self._running[key].add(operation_id)
        elif key in self._owed:
            owed, seen = self._owed[key]
            seen.add(operation_id)
            if len(seen) >= owed:
                del self._owed[key]
                self._patience.forget(key)

    # ---- judging ----------------------------------------------------------------------------------------------

    def _consider(self, key: Key, trigger: CompactionTrigger, position: Position | None) -> Decision | None:
        """The decision that stands now; None if there is nothing to decide, or if the partition is being compacted."""
        if key in self._running:
            return None
        now = self._clock.now_ms()
        verdict = self._judge(key, now)
        if verdict is None:
            self._leave(key)
            if self.counters.of(key) is None:
                self._patience.forget(key)
            if self.journal.stands(key):
                over = Verdict(status="declined", rule=OVER, reason="there are too few small files left", small=Heap())
                self._note(self._decision(key, over, trigger, position))
            return None
        if verdict.rule in (DISABLED, SETTINGS):
            self.tables.watch(key[0])
        decision = self._decision(key, verdict, trigger, position)
        before = self._decisions.get(key)
        if before is not None and before.told == decision.told:  # decided then, with the numbers of now
            decision = msgspec.structs.replace(before, verdict=verdict, policy=decision.policy)
        self._note(decision)
        if verdict.status == "declined" and verdict.until_ms is None:
            self._leave(key)
        else:
            until_ms = verdict.until_ms
            if self.tables.name(key[0]) is None:  # begun by settings that may not be its own, it would be for nothing
                until_ms = max(until_ms or 0, now + _INTRODUCTION_MS)
            self.queue.put(key, verdict.score, self._since.pop(key, now), until_ms)
            self._decisions[key] = decision
        return decision

    def _note(self, decision: Decision) -> None:
        if self.journal.note(decision):
            self._new.append(decision)

    def _judge(self, key: Key, now: int) -> Verdict | None:
        counts, known = self.counters.of(key), self.tables.of(key[0])
        if counts is None or not known.active:
            return None
        ripe_at = self.counters.ripen(key, now)
        verdict = judge(counts, known.policy, now, ripe_at=ripe_at, problem=known.problem)
        wait = None if verdict is None or verdict.status == "declined" else self._patience.of(key, now)
        return verdict if verdict is None or wait is None else wait.applied_to(verdict)

    def _decision(self, key: Key, verdict: Verdict, trigger: CompactionTrigger, position: Position | None) -> Decision:
        return Decision(
            key=key, verdict=verdict, policy=self.tables.of(key[0]).policy, trigger=trigger, position=position,
            decided_at=self._clock.now_ms(),
        )  # fmt: skip

    def _leave(self, key: Key) -> None:
        self.queue.drop(key)
        self._decisions.pop(key, None)


def _settings(known: Known) -> tuple[Policy, bool, str | None]:
    return known.policy, known.active, known.problem
