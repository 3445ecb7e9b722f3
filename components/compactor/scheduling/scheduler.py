"""The scheduler: counts files, decides about partitions and orders them. It reads in `load` and `restore` only.

scheduler.apply(events)            counts one transaction, and decides about every partition that it changed
candidate = scheduler.take()       returns the partition to compact next, which leaves the queue and runs
scheduler.spend(bytes)             its plan is made, and will rewrite so many bytes
scheduler.finish(candidate, ...)   the job has ended; the partition is decided again
scheduler.unrecorded()             returns decisions for the journal
scheduler.wakes_at()               returns when time alone changes something
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from astha.errors import Reject
from astha.events import Event, Operation
from components.compactor.scheduling.backoff import JobStatus, PartitionBackoffs
from components.compactor.scheduling.budget import HOUR_MS, Budget, BudgetLimits
from components.compactor.scheduling.counter_sync import CounterDrift, read_counts
from components.compactor.scheduling.counters import Counters, Key
from components.compactor.scheduling.delete_counts import WHOLE_TABLE
from components.compactor.scheduling.journal import Decision, Journal
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.policy_cache import PolicyCache, TablePolicy
from components.compactor.scheduling.queue import PartitionQueue
from components.compactor.scheduling.scoring import (
    DELETED_ROWS,
    DISABLED,
    NO_LONGER_NEEDED,
    SETTINGS,
    CompactionVerdict,
    FileSet,
    judge,
)
from registry.clock import Clock
from registry.contract import ConsistentRead, MetadataStore
from registry.models import CompactionTrigger, LakeTable, Row, TableDeleteFile, TableFile, TableMetadata
from registry.position import Position

_BATCH = 50
"""Partitions that are judged before the event loop runs other tasks: about a millisecond."""

_UNKNOWN_TABLE_MS = 1_000
"""Between two decisions about a partition of a table that was not read yet."""


class Candidate(msgspec.Struct, frozen=True):
    """A partition to compact, and the decision."""

    key: Key
    decision: Decision
    waited_ms: int


class Scheduler:
    def __init__(
        self, defaults: CompactionPolicy, limits: BudgetLimits, clock: Clock, *, policy_max_age_ms: int = 10_000
    ) -> None:
        self._clock = clock
        self.tables = PolicyCache(defaults, policy_max_age_ms)
        self.counters = Counters(defaults.min_age_ms)
        self.queue = PartitionQueue()
        self.budget = Budget(limits, clock.now_ms())
        self.journal = Journal()
        self._backoffs = PartitionBackoffs()
        self._drift = CounterDrift()
        self._decisions: dict[Key, Decision] = {}  # of the partitions in the queue
        self._running: dict[Key, set[str]] = {}  # with the operations of the swaps seen
        self._deletes_of_jobs: dict[Key, frozenset[int]] = {}  # ids of the delete files when the job began
        self._unseen_swaps: dict[Key, tuple[int, set[str]]] = {}  # of ended jobs: swaps done, and operations seen
        self._undecided: OrderedDict[Key, None] = OrderedDict()  # each once, the oldest first
        self._new_decisions: list[Decision] = []
        self._since: dict[Key, int] = {}  # when partitions began to wait, from before a restart
        self._applied: Position | None = None  # the last transaction counted since `load`

    def apply(self, events: Sequence[Event[Row]]) -> list[Decision]:
        """Applies one whole transaction and returns the new decisions. A transaction that is delivered again, after a
        failed attempt, is not counted twice. The daemon delivers none that the snapshot of `load` contained.

        Raises `Reject` if statistics and counts no longer change alike: a refresh counts again.
        """
        position = events[0].position
        if self._applied is not None and position <= self._applied:
            return []
        self._applied = position
        changed: set[Key] = set()
        for event in events:
            file = event.data
            if isinstance(file, TableFile):
                changed |= self.counters.apply(event)  # type: ignore[arg-type]  # of that row
                if file.operation == "compaction" and event.operation is Operation.INSERT:
                    self._see_swap((file.table_id, file.partition_path), file.operation_id or "")
            elif isinstance(file, TableDeleteFile):
                changed |= self._count_deletes(file, -1 if event.operation is Operation.DELETE else 1)
        wrong = self._drift.check(self.counters, events)
        if wrong is not None:
            raise Reject(f"the compactor's counts differ from the registry's, and are read again: {wrong}")
        for key in changed:
            self.tables.table_changed(key[0])
            self._decide(key, "event", position)
        self._decide_pending()
        return self._take_new_decisions()

    async def load(self, snapshot: ConsistentRead) -> list[Decision]:
        """Counts the registry's files, streamed. If reading fails, nothing changes. Running jobs go on."""
        now = self._clock.now_ms()
        counted = await read_counts(snapshot, self.tables, now)
        self.counters, self._drift = counted.counters, counted.drift
        self._applied = None
        for table_id in {*self.tables.known(), *(key[0] for key in self.journal.recorded())} - counted.tables:
            self.forget(table_id)
        for number, key in enumerate({*self.counters, *(entry.key for entry in self.queue), *self.journal.recorded()}):
            self._decide(key, "refresh", None)
            if number % _BATCH == 0:
                await asyncio.sleep(0)  # yield to the event loop
        self._since.clear()
        return self._take_new_decisions()

    async def restore(self, store: MetadataStore) -> None:
        """Reads the journal: recorded decisions, since when partitions wait, and the bytes of the last hour."""
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

    def introduce(self, table: LakeTable, metadata: TableMetadata) -> TablePolicy:
        """Takes a table as it was read now. If its settings have changed, its partitions are decided again."""
        now = self._clock.now_ms()
        before, is_new = self.tables.of(table.id), self.tables.name(table.id) is None
        known = self.tables.introduce(table, metadata, now)
        tuned = self.counters.tune(table.id, known.policy.min_age_ms, now)
        if (
            is_new
            or tuned
            or (before.policy, before.active, before.problem) != (known.policy, known.active, known.problem)
        ):
            self._decide_later((table.id, path) for path in self.counters.paths(table.id))
            self._decide_pending()
        return known

    def forget(self, table_id: int) -> None:
        """The table was dropped."""
        self.tables.forget(table_id)
        self.journal.forget(table_id)
        self.counters.forget(table_id)
        for entry in [entry for entry in self.queue if entry.key[0] == table_id]:
            self._drop(entry.key)

    def take(self) -> Candidate | None:
        """Returns the next partition, or None. The caller must `finish` it."""
        now = self._clock.now_ms()
        self._decide_pending()
        while self.budget.allows(now) and (entry := self.queue.first()) is not None:
            key = entry.key
            decision = self._decisions[key]
            if self._decide(key, decision.trigger, decision.position) is None or self.queue.first() != entry:
                continue
            decision = self._decisions[key]
            self._drop(key)
            self._running[key] = set()
            self._deletes_of_jobs[key] = self.counters.deletes.ids(key)
            self._unseen_swaps.pop(key, None)
            self.journal.begun(key)
            self.budget.begin()
            return Candidate(key, decision, now - entry.since_ms)
        return None

    def spend(self, size_bytes: int) -> None:
        self.budget.spend(size_bytes, self._clock.now_ms())

    def finish(
        self,
        candidate: Candidate,
        status: JobStatus,
        *,
        swaps: int | None = None,
        verdict: CompactionVerdict | None = None,
    ) -> None:
        """``swaps`` is the number of its swaps; by default one if it is done. Until their events have come, the counts
        are old, and the partition is not decided.
        """
        key, now = candidate.key, self._clock.now_ms()
        seen, deletes = self._running.pop(key), self._deletes_of_jobs.pop(key)
        if status == "done" and candidate.decision.verdict.rule == DELETED_ROWS:
            self.counters.deletes.spend(key, deletes)
        self.budget.end()
        done = int(status == "done") if swaps is None else swaps
        if status != "done":
            self._backoffs.note(key, status, now, verdict)
        elif len(seen) < done:
            self._unseen_swaps[key] = (done, seen)
            self._backoffs.note(key, "done", now)
        else:
            self._backoffs.forget(key)
        self._decide(key, "event", None)

    def decline(self, candidate: Candidate, verdict: CompactionVerdict) -> None:
        """Its plan found nothing to do, for the reason in ``verdict``."""
        self.finish(candidate, "declined", verdict=verdict)

    def unrecorded(self, limit: int = 1_000) -> list[Decision]:
        """Returns decisions to write to the journal. Call `journal.put_back` for those that could not be written."""
        return self.journal.take(lambda table_id: self.tables.name(table_id) is not None, limit)

    def has_undecided(self) -> bool:
        """Whether the next `take` decides about partitions that the last one left undecided."""
        release_ms = self.queue.next_release_ms()
        return bool(self._undecided) or (release_ms is not None and release_ms <= self._clock.now_ms())

    def wakes_at(self) -> int | None:
        """Returns when the result of `take` may change without an event, in epoch milliseconds."""
        now = self._clock.now_ms()
        times = [self.queue.next_release_ms(), None if self.queue.first() is None else self.budget.allows_at(now)]
        return min((time for time in times if time is not None), default=None)

    def is_running(self, key: Key) -> bool:
        """Whether it was taken and is not finished."""
        return key in self._running

    def waiting(self) -> tuple[int, int]:
        """Returns the number of partitions that wait, and the bytes that they would rewrite."""
        return len(self.queue), self.queue.size_bytes

    def _decide_pending(self) -> None:
        """Decides about some partitions of which a whole table, or time, has changed the decision."""
        self._decide_later(self.queue.release(self._clock.now_ms(), _BATCH))
        for _ in range(min(_BATCH, len(self._undecided))):
            self._decide(self._undecided.popitem(last=False)[0], "event", None)

    def _decide_later(self, keys: Iterable[Key]) -> None:
        self._undecided.update(dict.fromkeys(keys))

    def _take_new_decisions(self) -> list[Decision]:
        taken, self._new_decisions = self._new_decisions, []
        return taken

    def _count_deletes(self, file: TableDeleteFile, sign: int) -> set[Key]:
        """Returns the partition that is to be decided again. All those of a table are decided later, some at a time."""
        key = self.counters.deletes.count(file, sign)
        if file.partition_path != WHOLE_TABLE:
            return {key}
        self._decide_later((file.table_id, path) for path in self.counters.paths(file.table_id))
        return set()

    def _see_swap(self, key: Key, operation_id: str) -> None:
        if key in self._running:
            self._running[key].add(operation_id)
        elif key in self._unseen_swaps:
            done, seen = self._unseen_swaps[key]
            seen.add(operation_id)
            if len(seen) >= done:
                del self._unseen_swaps[key]
                self._backoffs.forget(key)

    def _decide(self, key: Key, trigger: CompactionTrigger, position: Position | None) -> Decision | None:
        """Returns the present decision; None if there is nothing to decide, or if the partition is being compacted."""
        if key in self._running:
            return None
        now = self._clock.now_ms()
        verdict = self._judge(key, now)
        if verdict is None:
            self._drop(key)
            if self.counters.of(key) is None:
                self._backoffs.forget(key)
            if self.journal.is_recorded(key):
                done = CompactionVerdict(
                    status="declined",
                    rule=NO_LONGER_NEEDED,
                    reason="there are too few small files left",
                    small=FileSet(),
                )
                self._note(self._decision(key, done, trigger, position))
            return None
        if verdict.rule in (DISABLED, SETTINGS):
            self.tables.reread(key[0])
        decision = self._decision(key, verdict, trigger, position)
        before = self._decisions.get(key)
        if before is not None and before.identity == decision.identity:  # the same decision, with new counts
            decision = msgspec.structs.replace(before, verdict=verdict, policy=decision.policy)
        self._note(decision)
        if verdict.status == "declined" and verdict.until_ms is None:
            self._drop(key)
        else:
            until_ms = verdict.until_ms
            if self.tables.name(key[0]) is None:  # the defaults may not be its settings
                until_ms = max(until_ms or 0, now + _UNKNOWN_TABLE_MS)
            since_ms = self._since.pop(key, now)
            self.queue.put(key, verdict.score, since_ms, until_ms, size_bytes=verdict.picked.size_bytes)
            self._decisions[key] = decision
        return decision

    def _note(self, decision: Decision) -> None:
        if self.journal.note(decision):
            self._new_decisions.append(decision)

    def _judge(self, key: Key, now: int) -> CompactionVerdict | None:
        counts, known = self.counters.of(key), self.tables.of(key[0])
        if counts is None or not known.active:
            return None
        ripe_at = self.counters.ripen(key, now)
        deletes = self.counters.deletes.of(key)
        verdict = judge(counts, known.policy, now, ripe_at=ripe_at, problem=known.problem, deletes=deletes)
        wait = None if verdict is None or verdict.status == "declined" else self._backoffs.of(key, now)
        return verdict if verdict is None or wait is None else wait.applied_to(verdict)

    def _decision(
        self, key: Key, verdict: CompactionVerdict, trigger: CompactionTrigger, position: Position | None
    ) -> Decision:
        return Decision(
            key=key, verdict=verdict, policy=self.tables.of(key[0]).policy, trigger=trigger, position=position,
            decided_at=self._clock.now_ms(),
        )  # fmt: skip

    def _drop(self, key: Key) -> None:
        self.queue.drop(key)
        self._decisions.pop(key, None)
