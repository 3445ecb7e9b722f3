"""Figures against Debezium's embedded engine: the same WAL, the same commits, rounds in turn."""

from __future__ import annotations

import math
from statistics import median

from benchmarks.pipeline.debezium import engine
from benchmarks.pipeline.latency import Paced, Start, p50, p99, pace, paced
from benchmarks.pipeline.readers import DebeziumReader, Reader, daemon, drain_by_daemon, drain_by_debezium
from benchmarks.pipeline.wal import Wal
from benchmarks.report import Report
from tests.servers.jars import JarsMissing

ROUNDS = 3
MEASURED_S = 10
WARM_UP_S = 6  # a JVM's, so that none of it is measured
IDLE_S = 6


def drains_against_debezium(report: Report, wal: Wal) -> None:
    if reason := _unavailable():
        report.add("rate_vs_debezium", math.nan, reason, at_least=3)
        report.add("cpu_vs_debezium", math.nan, reason, at_most=1 / 6)
        return
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(drain_by_debezium(wal))
        ours.append(drain_by_daemon(wal, unix=False, scratch=True))
    rate, their_rate = (median(drained.rate for drained in drains) for drains in (ours, theirs))
    cpu, their_cpu = (median(drained.cpu for drained in drains) for drains in (ours, theirs))
    sender, their_sender = (median(drained.walsender_cpu for drained in drains) for drains in (ours, theirs))
    start, their_start = (median(drained.start_s for drained in drains) for drains in (ours, theirs))
    our_peak = median(drained.details["peak_mb"] for drained in ours)
    warm, from_first, after_start, warm_cpu, peak = (
        median(drained.details[name] for drained in theirs)
        for name in ("second_half_rate", "rate", "cpu_from_first", "second_half_cpu_us", "peak_mb")
    )
    report.add(
        "rate_vs_debezium",
        rate / their_rate,
        f"{wal.written:,} inserts in transactions of 1,000 over TCP, from the start of streaming to the last event: "
        f"{rate:,.0f}/s over {their_rate:,.0f}/s of Debezium {engine.VERSION} ({from_first:,.0f}/s after its first "
        f"batch, {warm:,.0f}/s in its second half); from the start of the process to that of streaming "
        f"{start:.1f} s over {their_start:.1f} s",
        at_least=3,
    )
    report.add(
        "cpu_vs_debezium",
        cpu / their_cpu,
        f"{cpu:.2f} s + walsender {sender:.2f} s over {their_cpu:.2f} s + walsender {their_sender:.2f} s "
        f"({after_start:.2f} s after its first batch, {warm_cpu:.0f} us an event in its second half); "
        f"peak RSS {our_peak:.0f} MB over {peak:.0f} MB",
        at_most=1 / 6,
    )


async def latency_against_debezium(report: Report, wal: Wal) -> None:
    if _unavailable():
        return
    ours: list[Paced] = []
    prompt: list[Paced] = []
    for _ in range(ROUNDS):
        ours.append(await _run(wal, lambda slot: daemon(wal, slot)))
        prompt.append(await _run(wal, lambda slot: DebeziumReader(wal, slot, engine.PROMPT)))
    shipped = [await _run(wal, lambda slot: DebeziumReader(wal, slot, engine.AS_SHIPPED))]
    report.add(
        "latency_p99_vs_debezium",
        p99(ours) / p99(prompt),
        f"commit to handler at {pace(ours)} over TCP, p50 / p99 ms: {_lateness(ours)} over {_lateness(prompt)} "
        f"with its promptest settings, {_lateness(shipped)} with its own",
    )
    report.add(
        "idle_cpu_vs_debezium",
        _idle(ours) / _idle(prompt),
        f"of a core with no commits: {_idle(ours):.1%} over {_idle(prompt):.1%} with its promptest settings, "
        f"{_idle(shipped):.1%} with its own; at {pace(ours)}: {_busy(ours):.1%}, {_busy(prompt):.1%}, "
        f"{_busy(shipped):.1%}",
    )


async def _run(wal: Wal, start: Start[Reader]) -> Paced:
    return await paced(wal, MEASURED_S, start, warm_up_s=WARM_UP_S, idle_s=IDLE_S)


def _lateness(runs: list[Paced]) -> str:
    return f"{p50(runs):.2f} / {p99(runs):.2f}"


def _idle(runs: list[Paced]) -> float:
    return median(run.idle for run in runs)


def _busy(runs: list[Paced]) -> float:
    return median(run.busy for run in runs)


def _unavailable() -> str | None:
    """Fetches and compiles what is missing. Returns the reason if that fails."""
    try:
        engine.classpath()
    except JarsMissing as error:
        return f"not measured: {error}"
    return None
