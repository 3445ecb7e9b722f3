"""The compactor's metrics: counters of ended jobs, gauges of running ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from astha.subscribers import Metric
from components.compactor.execution.job import CompactionJob
from components.compactor.execution.outcome import JobOutcome
from components.compactor.planning.left_out import LeftOut
from components.compactor.scheduling.journal import Decision
from components.compactor.scheduling.policy_cache import PolicyCache
from components.compactor.scheduling.scheduler import Scheduler
from registry.clock import Clock

_NEWEST_WEIGHT = 0.3  # of the last job in the mean rate


class CompactorMetrics:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._outcomes: Counter[str] = Counter()
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._sums: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._rate: float | None = None  # input bytes per second

    def count(self, outcome: JobOutcome) -> None:
        self._outcomes[outcome.status] += 1
        for name in ("input_files", "output_files", "input_bytes", "output_bytes", "rows"):
            self._sums[name] += getattr(outcome, name)
        for phase, spent in outcome.seconds.items():
            self._seconds[phase] = self._seconds.get(phase, 0.0) + spent
        spent = outcome.seconds.get("all", 0.0)
        if outcome.status == "done" and spent > 0:
            rate = outcome.input_bytes / spent
            self._rate = rate if self._rate is None else (1 - _NEWEST_WEIGHT) * self._rate + _NEWEST_WEIGHT * rate

    def decided(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self._decisions[decision.verdict.status, decision.verdict.rule] += 1

    def remaining_s(self, job: CompactionJob) -> float | None:
        """Estimates the remaining time by the rate of earlier jobs; None before the first has ended."""
        if self._rate is None:
            return None
        spent = self._clock.monotonic() - job.began
        return max(0.0, job.bytes_total / self._rate - spent)

    def metrics(self, jobs: Iterable[CompactionJob]) -> Iterator[Metric]:
        for status in ("done", "declined", "aborted", "failed", "cancelled"):
            help_text = "Compactions by outcome."
            yield Metric("jobs", help_text, self._outcomes[status], {"status": status}, kind="counter")
        for (status, rule), count in sorted(self._decisions.items()):
            help_text = "New decisions, by status and rule."
            yield Metric("decisions", help_text, count, {"status": status, "rule": rule}, kind="counter")
        for name, help_text in (
            ("input_files", "Files merged."),
            ("output_files", "Files written."),
            ("input_bytes", "Bytes merged."),
            ("output_bytes", "Bytes written."),
            ("rows", "Rows merged."),
        ):
            yield Metric(name, help_text, self._sums[name], kind="counter")
        for phase, spent in sorted(self._seconds.items()):
            yield Metric("seconds", "Time spent in merges, by phase.", spent, {"phase": phase}, kind="counter")
        running = list(jobs)
        help_text = "Running compactions with a merge that has exceeded its time limit and could not be ended."
        yield Metric("stuck_jobs", help_text, sum(job.stuck for job in running))
        for job in running:
            labels = {"table": job.spec.name, "partition": job.spec.partition_path}
            done = job.bytes_done / job.bytes_total if job.bytes_total else 1.0
            yield Metric(
                "progress", "Share of a running compaction's bytes that is swapped, from 0 to 1.", done, labels
            )
            remaining_s = self.remaining_s(job)
            if remaining_s is not None:
                help_text = "Estimated time until a running compaction ends."
                yield Metric("remaining_seconds", help_text, remaining_s, labels)

    def left_out(self, files: LeftOut, tables: PolicyCache) -> Iterator[Metric]:
        """Yields a metric per table. `astha compaction explain` lists the files."""
        counts: Counter[int] = Counter()
        for (table_id, _), waits in files:
            counts[table_id] += len(waits)
        for table_id, count in sorted(counts.items()):
            help_text = "Files that can't be read and are left out of compaction for now."
            yield Metric("left_out_files", help_text, count, {"table": tables.name(table_id) or f"table {table_id}"})

    def waiting(self, scheduler: Scheduler) -> Iterator[Metric]:
        partitions, size = scheduler.waiting()
        yield Metric("waiting_partitions", "Partitions that wait for a job.", partitions)
        yield Metric("waiting_bytes", "Bytes that waiting partitions would rewrite.", size)
        yield Metric("partitions", "Partitions whose small files are counted.", len(scheduler.counters))
        left = scheduler.budget.left(self._clock.now_ms())
        if left is not None:
            yield Metric("budget_bytes", "Bytes that may be merged now by the hourly limit.", left)
