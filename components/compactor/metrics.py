"""What the compactor shows of itself: counted as jobs end, and looked at while they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from astha.subscribers import Metric
from components.compactor.execution.job import Job
from components.compactor.execution.outcome import Outcome
from components.compactor.planning.left_out import LeftOut
from components.compactor.scheduling.journal import Decision
from components.compactor.scheduling.policy_cache import Tables
from components.compactor.scheduling.scheduler import Decider
from registry.clock import Clock

_WEIGHT = 0.3  # of the newest job in the rate by which the others' ends are foreseen


class Tallies:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._outcomes: Counter[str] = Counter()
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._sums: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._rate: float | None = None  # bytes of input a second

    def count(self, outcome: Outcome) -> None:
        self._outcomes[outcome.status] += 1
        for name in ("input_files", "output_files", "input_bytes", "output_bytes", "rows"):
            self._sums[name] += getattr(outcome, name)
        for phase, spent in outcome.seconds.items():
            self._seconds[phase] = self._seconds.get(phase, 0.0) + spent
        spent = outcome.seconds.get("all", 0.0)
        if outcome.status == "done" and spent > 0:
            rate = outcome.input_bytes / spent
            self._rate = rate if self._rate is None else (1 - _WEIGHT) * self._rate + _WEIGHT * rate

    def decided(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self._decisions[decision.verdict.status, decision.verdict.rule] += 1

    def left_s(self, job: Job) -> float | None:
        """How long a job will take, by the rate of those before it; None before the first."""
        if self._rate is None:
            return None
        spent = self._clock.monotonic() - job.began
        return max(0.0, job.bytes_total / self._rate - spent)

    def metrics(self, jobs: Iterable[Job]) -> Iterator[Metric]:
        for status in ("done", "declined", "aborted", "failed", "cancelled"):
            told = "Compactions by what became of them."
            yield Metric("jobs", told, self._outcomes[status], {"status": status}, kind="counter")
        for (status, rule), count in sorted(self._decisions.items()):
            told = "Decisions that were news, by rule."
            yield Metric("decisions", told, count, {"status": status, "rule": rule}, kind="counter")
        for name, told in (
            ("input_files", "Files that were merged."),
            ("output_files", "Files that they became."),
            ("input_bytes", "Bytes that were merged."),
            ("output_bytes", "Bytes that they became."),
            ("rows", "Rows that were merged."),
        ):
            yield Metric(name, told, self._sums[name], kind="counter")
        for phase, spent in sorted(self._seconds.items()):
            yield Metric("seconds", "Time spent by phase.", spent, {"phase": phase}, kind="counter")
        running = list(jobs)
        told = "Running compactions with a merge that should have ended or been ended by now."
        yield Metric("stuck_jobs", told, sum(job.stuck for job in running))
        for job in running:
            labels = {"table": job.assignment.name, "partition": job.assignment.partition_path}
            done = job.bytes_done / job.bytes_total if job.bytes_total else 1.0
            yield Metric("progress", "How much of a running compaction is swapped, from 0 to 1.", done, labels)
            left_s = self.left_s(job)
            if left_s is not None:
                yield Metric("left_seconds", "When a running compaction will be over, by the others.", left_s, labels)

    def left_out(self, files: LeftOut, tables: Tables) -> Iterator[Metric]:
        """By table: partitions with such files are named by `astha compaction explain`."""
        counts: Counter[int] = Counter()
        for (table_id, _), waits in files:
            counts[table_id] += len(waits)
        for table_id, count in sorted(counts.items()):
            told = "Files that can't be read, and are left out of compaction for now."
            yield Metric("left_out_files", told, count, {"table": tables.name(table_id) or f"table {table_id}"})

    def waiting(self, decider: Decider) -> Iterator[Metric]:
        partitions, size = decider.waiting()
        yield Metric("waiting_partitions", "Partitions that wait for their turn, or for their time.", partitions)
        yield Metric("waiting_bytes", "Bytes that they would rewrite.", size)
        yield Metric("partitions", "Partitions whose small files are counted.", len(decider.counters))
        left = decider.budget.left(self._clock.now_ms())
        if left is not None:
            yield Metric("budget_bytes", "Bytes that may be merged now, of the hour's.", left)
