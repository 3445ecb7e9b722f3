"""The daemon's figures: rate against pg_recvlogical, latency against a bare reader, isolation, recovery.

Every reader drains the same WAL through a slot of its own, copied from one that nobody moves.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import msgspec
import psycopg

from benchmarks.pipeline_child import TABLES, Job
from benchmarks.report import Report, percentile, run
from registry.embedded import EmbeddedPostgres
from registry.migration import migrate

Answer: TypeAlias = dict[str, Any]

BASE, SLOT = "base", "measured"
RATE = 500  # commits a second, for latency
WARM_UP_S = 1  # of commits that don't count
_INSERT = """
    INSERT INTO segments (topic, partition_id, base_offset, end_offset, record_count, size_bytes, s3_bucket, s3_key,
                          byte_offset, created_at)
    SELECT 't', 0, n * 10, n * 10 + 9, 10, 4096, 'bucket', 'objects/' || n, 0, 1700000000000
    FROM generate_series(%s::bigint, %s::bigint) n
"""


class Bench:
    """A server, its WAL, and the slots through which it is read again and again."""

    def __init__(self, server: EmbeddedPostgres, name: str) -> None:
        self.server, self.name = server, name
        with psycopg.connect(server.url("postgres"), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        migrate(server.url(name))
        self.admin = psycopg.connect(server.url(name), autocommit=True)
        self.admin.execute("INSERT INTO topics VALUES ('t', 1, NULL, '{}', 1, 1)")
        self.admin.execute("INSERT INTO partitions VALUES ('t', 0, 0, 1, 1)")
        self.written = 0
        self.base = f"{BASE}_{name}"
        self.slot = f"{SLOT}_{name}"
        self.admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self.base])

    def url(self, unix: bool = False) -> str:
        return self.server.url(self.name, unix=unix)

    def write(self, rows: int, transaction: int) -> None:
        with psycopg.connect(self.url()) as writer:
            writer.execute("SET synchronous_commit = off")
            for _ in range(rows // transaction):
                writer.execute(_INSERT, [self.written, self.written + transaction - 1])
                self.written += transaction
                writer.commit()
        self.admin.execute("CHECKPOINT")

    def forget(self) -> None:
        """Slots that are copied from now on start here."""
        self.admin.execute("SELECT pg_drop_replication_slot(%s)", [self.base])
        self.admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self.base])

    @contextmanager
    def fresh_slot(self) -> Iterator[str]:
        """A copy of the base slot, and a ledger that makes the lanes go on from there."""
        self.admin.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [self.base, self.slot])
        self.admin.execute("DELETE FROM ledger")
        self.admin.execute(
            """
            INSERT INTO ledger
            SELECT 'lane' || n, (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, NULL, %s::json, 'live', false, NULL, 0
            FROM pg_replication_slots, generate_series(0, 3) n WHERE slot_name = %s
            """,
            [json.dumps(sorted(TABLES)), self.slot],
        )
        self.admin.execute("DELETE FROM source_identity")
        self.admin.execute(
            """
            INSERT INTO source_identity
            SELECT %s, system_identifier || '/' || timeline_id, 0 FROM pg_control_system(), pg_control_checkpoint()
            """,
            [self.slot],
        )
        try:
            yield self.slot
        finally:
            for _ in range(600):
                try:
                    self.admin.execute("SELECT pg_drop_replication_slot(%s)", [self.slot])
                    break
                except psycopg.errors.ObjectInUse:
                    time.sleep(0.05)

    def drain(self, unix: bool) -> Answer:
        with self.fresh_slot() as slot:
            job = Job(url=self.url(unix), store_url=self.url(), slot=slot, expect=self.written)
            return _last_answer(_child(job).communicate(timeout=600)[0])

    def recvlogical(self, unix: bool) -> float:
        """Seconds of pg_recvlogical for the same WAL, its start included (a few milliseconds)."""
        host = str(self.server.directory) if unix else "127.0.0.1"
        (end,) = self.admin.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
        options = ["proto_version=1", "publication_names=astha", "binary=true"]
        with self.fresh_slot() as slot:
            command = [str(_recvlogical(self.server)), "-h", host, "-p", str(self.server.port), "-U", "postgres"]
            command += ["-d", self.name, "-S", slot, "--start", "-f", os.devnull, "--endpos", end]
            command += [part for option in options for part in ("-o", option)]
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            return time.perf_counter() - started


def _recvlogical(server: EmbeddedPostgres) -> Path:
    program = server.bin / "pg_recvlogical"
    if not program.exists():
        raise SystemExit(f"no pg_recvlogical beside {server.bin}: install PostgreSQL's client programs")
    return program


def _child(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.pipeline_child", msgspec.json.encode(job).decode()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _last_answer(output: str) -> Answer:
    answer: Answer = json.loads(output.strip().splitlines()[-1])
    return answer


def rates(report: Report, server: EmbeddedPostgres) -> None:
    goals = {(1_000, "tcp"): 1.0, (1_000, "unix"): 0.6, (1, "tcp"): 1.0, (1, "unix"): 0.9}
    grown: list[float] = []
    for size, rows in ((1_000, report.pick(300_000, 60_000)), (1, report.pick(60_000, 20_000))):
        bench = Bench(server, f"rate{size}")
        bench.write(rows, size)
        for transport in ("tcp", "unix"):
            ours, theirs = [], []
            for _ in range(report.pick(4, 1)):
                theirs.append(rows / bench.recvlogical(transport == "unix"))
                ours.append(bench.drain(transport == "unix"))
            grown += [answer["grown_mb"] for answer in ours]
            rate = median(rows / answer["seconds"] for answer in ours)
            cpu = median(answer["cpu"] for answer in ours)
            name = f"rate_vs_pg_recvlogical_{transport}" + ("" if size == 1_000 else "_tx1")
            report.add(
                name,
                rate / median(theirs),
                f"{rows:,} inserts in transactions of {size:,}, typed, to four lanes: {rate:,.0f}/s "
                f"({cpu / rows * 1e6:.1f} us CPU each) over pg_recvlogical -f /dev/null {median(theirs):,.0f}/s",
                at_least=goals[size, transport],
            )
        bench.admin.close()
    report.add("rss_growth_mb", max(grown), "peak RSS while draining, over the daemon before it starts", at_most=64)


async def latencies(report: Report, bench: Bench, **job: Any) -> Answer:
    """Commits at a steady pace while a child reads; what it saw."""
    seconds = report.pick(12, 3)
    bench.forget()
    with bench.fresh_slot() as slot:
        child = _child(Job(url=bench.url(), store_url=bench.url(), slot=slot, **job))
        assert child.stdout is not None
        await asyncio.to_thread(child.stdout.readline)
        async with await psycopg.AsyncConnection.connect(bench.url(), autocommit=True) as writer:
            begun = time.perf_counter()
            for number in range((WARM_UP_S + seconds) * RATE):
                await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
                await writer.execute(_INSERT, [bench.written, bench.written])
                bench.written += 1
        await asyncio.sleep(0.5)
        output, _ = await asyncio.to_thread(child.communicate)
    (answer,) = [_last_answer(output)]
    answer["late_ms"] = sorted(late / 1000 for late in answer["late_us"][-seconds * RATE :])
    return answer


async def latency(report: Report, server: EmbeddedPostgres) -> None:
    bench = Bench(server, "latency")
    bare, whole, broken = [], [], []
    for _ in range(report.pick(3, 1)):
        bare.append(await latencies(report, bench, bare=True))
        whole.append(await latencies(report, bench))
        broken.append(await latencies(report, bench, hung=1))
    p50 = median(percentile(answer["late_ms"], 0.5) for answer in whole)
    p99 = {name: median(percentile(answer["late_ms"], 0.99) for answer in answers)
           for name, answers in (("bare", bare), ("whole", whole), ("broken", broken))}  # fmt: skip
    what = f"commit to on_event of the last of four, {RATE} commits/s over TCP"
    report.add("latency_p50_ms", p50, what, at_most=1)
    report.add("latency_p99_ms", p99["whole"], what, at_most=5)
    against_bare = f"{p99['whole']:.2f} ms over {p99['bare']:.2f} ms without lanes"
    report.add("latency_p99_vs_bare_reader", p99["whole"] / p99["bare"], against_bare, at_most=1.5)
    with_hung = f"one of four lanes hung: {p99['broken']:.2f} ms over {p99['whole']:.2f} ms without"
    report.add("isolation_p99_ratio", p99["broken"] / p99["whole"], with_hung, at_most=2)
    bench.admin.close()


def recovery(report: Report, server: EmbeddedPostgres) -> None:
    """kill -9, start again at once, and the time to the first event that nobody had delivered."""
    bench = Bench(server, "recovery")
    with bench.fresh_slot() as slot:
        job = Job(url=bench.url(), store_url=bench.url(), slot=slot)
        first = _child(job)
        assert first.stdout is not None
        first.stdout.readline()
        first.send_signal(signal.SIGKILL)
        killed = time.time()
        second = _child(job)
        bench.write(10, 10)
        assert second.stdout is not None
        second.stdout.readline()
        time.sleep(1)
        first.communicate()
        answer = _last_answer(second.communicate()[0])
    report.add("recovery_s", answer["first_at"] - killed, "kill -9, restarted at once, to the first event", at_most=5)
    bench.admin.close()


async def measure(report: Report) -> None:
    with EmbeddedPostgres(settings={"max_wal_size": "4GB", "shared_buffers": "256MB"}) as server:
        rates(report, server)
        await latency(report, server)
        recovery(report, server)


if __name__ == "__main__":
    sys.exit(run("pipeline", measure))
