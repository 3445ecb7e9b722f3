"""Commits at a steady pace beside a reader: the latency of each event, and the reader's CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias, TypeVar

import psycopg

from benchmarks.pipeline.readers import Reader
from benchmarks.pipeline.wal import INSERT, Wal
from benchmarks.processes import cpu_seconds
from benchmarks.report import percentile

RATE = 500  # commits a second
_START_LIMIT_S = 60

R = TypeVar("R", bound=Reader)

Start: TypeAlias = Callable[[str], R]
Beside: TypeAlias = Callable[[R], AbstractContextManager[object]]


def nothing(_: Reader) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True)
class Paced:
    """``busy`` and ``idle``: cores used while commits come, and while none come."""

    late_ms: list[float]
    commits_s: float
    busy: float
    idle: float


async def paced(
    wal: Wal, seconds: int, start: Start[R], *, warm_up_s: int = 1, idle_s: int = 0, beside: Beside[R] = nothing
) -> Paced:
    """Ignores commits of the first ``warm_up_s``. Enters ``beside`` while commits come."""
    wal.forget()
    with wal.fresh_slot() as slot, ExitStack() as stack:
        reader = start(slot)
        await _until_it_reads(wal, slot, reader)
        stack.enter_context(beside(reader))
        async with await psycopg.AsyncConnection.connect(wal.url(), autocommit=True) as writer:
            await _commit(wal, writer, warm_up_s)
            with _Cores(reader.pid) as busy:
                count = await _commit(wal, writer, seconds)
        await asyncio.sleep(0.5)
        stack.close()
        with _Cores(reader.pid) as idle:
            await asyncio.sleep(idle_s)
        answer = await asyncio.to_thread(reader.finish)
    late_ms = [late / 1000 for late in answer["late_us"][-count:]]
    return Paced(late_ms, count / busy.seconds, busy.taken, idle.taken if idle_s else 0.0)


def pace(runs: list[Paced]) -> str:
    """Reports a machine that is too busy to commit at the intended pace."""
    reached = median(run.commits_s for run in runs)
    return f"{RATE} commits/s" if reached > 0.95 * RATE else f"{reached:.0f} commits/s ({RATE} were wanted)"


def p50(runs: list[Paced]) -> float:
    return median(percentile(run.late_ms, 0.5) for run in runs)


def p99(runs: list[Paced]) -> float:
    return median(percentile(run.late_ms, 0.99) for run in runs)


def cores(runs: list[Paced]) -> float:
    """Cores that the reader's own process used while commits came."""
    return median(run.busy for run in runs)


async def _until_it_reads(wal: Wal, slot: str, reader: Reader) -> None:
    give_up = time.monotonic() + _START_LIMIT_S
    while not wal.read_by_somebody(slot):
        if time.monotonic() > give_up:
            reader.kill()
            raise SystemExit(f"it does not read after {_START_LIMIT_S} s: {reader.finish()}")
        await asyncio.sleep(0.02)


async def _commit(wal: Wal, writer: psycopg.AsyncConnection, seconds: int) -> int:
    """Returns the number of commits: fewer than intended where a commit takes longer than its interval."""
    begun = time.perf_counter()
    insert = INSERT.format(first="%s", last="%s")
    count = 0
    while count < seconds * RATE and time.perf_counter() - begun < seconds:
        await asyncio.sleep(max(0.0, begun + count / RATE - time.perf_counter()))
        await writer.execute(insert, [wal.written, wal.written])
        wal.written += 1
        count += 1
    return count


class _Cores:
    """Measures the cores that a process uses while this is entered."""

    def __init__(self, pid: int) -> None:
        self.taken = self.seconds = 0.0
        self._pid = pid

    def __enter__(self) -> _Cores:
        self._cpu, self._started = cpu_seconds(self._pid), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started
        self.taken = (cpu_seconds(self._pid) - self._cpu) / self.seconds
