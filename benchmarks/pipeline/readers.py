"""Readers of the WAL: the daemon, pg_recvlogical, Debezium. Each gets a slot and reports its cost."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.pipeline.child import Answer, Job, serve
from benchmarks.pipeline.debezium import engine
from benchmarks.pipeline.wal import LANES, Wal
from benchmarks.processes import WalsenderWatch
from registry.embedded_postgres import EmbeddedPostgres

_LIMIT_S = 600

# What `benchmarks.pipeline` imports, so that a fork finds it all there.
multiprocessing.set_forkserver_preload(["benchmarks.pipeline.child", "benchmarks.pipeline.debezium_peer"])


@dataclass(frozen=True)
class Drained:
    """``seconds`` count from when the server begins to serve the slot, ``start_s`` from the process's start until then.

    ``cpu``, in seconds too, has the start in it, but not the loading of Python or of the JVM.
    """

    events: int
    start_s: float
    seconds: float
    cpu: float
    walsender_cpu: float
    details: Answer  # what only this reader says

    @classmethod
    def by(cls, walsender: WalsenderWatch, events: int, last_at: float, cpu: float, details: Answer) -> Drained:
        start_s = walsender.streaming_since - walsender.begun
        return cls(events, start_s, last_at - walsender.streaming_since, cpu, walsender.cpu, details)

    @property
    def rate(self) -> float:
        return self.events / self.seconds


class Reader(Protocol):
    """A process that reads a slot."""

    @property
    def pid(self) -> int: ...

    def finish(self) -> Answer:
        """Waits until it ends, and asks it to end unless it expects a number of events. Returns its last output."""

    def kill(self) -> None: ...


class DaemonReader:
    """The daemon with its lanes, or without (``bare``).

    Forked from a process that has imported everything, unless it is to start from ``scratch``.
    """

    def __init__(self, job: Job, *, scratch: bool = False) -> None:
        processes = multiprocessing.get_context("spawn") if scratch else multiprocessing.get_context("forkserver")
        self._words, theirs = processes.Pipe()
        self._process = processes.Process(target=serve, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_until_ready(self) -> Answer:
        answer: Answer = self._words.recv()
        return answer

    def kill(self) -> None:
        self._process.kill()

    def refresh(self) -> Answer:
        """Refreshes the first lane. Returns when it is complete."""
        self._words.send("refresh")
        answer: Answer = self._words.recv()
        return answer

    def finish(self) -> Answer:
        answer: Answer = {}
        try:
            self._words.send("end")
            while self._words.poll(_LIMIT_S):
                answer = self._words.recv()
        except (EOFError, OSError):  # it has said all, and ended
            pass
        self._process.join(_LIMIT_S)
        if not answer or self._process.exitcode != 0:
            raise SystemExit(f"the daemon ended with {self._process.exitcode}, saying {answer}")
        return answer


class DebeziumReader:
    def __init__(
        self, wal: Wal, slot: str, settings: engine.Settings, expect: int = 0, main: Path = engine.DRAIN
    ) -> None:
        self._process = engine.start("127.0.0.1", wal.server.port, wal.name, slot, settings, expect, main)

    @property
    def pid(self) -> int:
        return self._process.pid

    def finish(self) -> Answer:
        try:
            said, complaint = self._process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        if self._process.returncode != 0:
            raise SystemExit(f"Debezium ended with {self._process.returncode}: {complaint[-2000:]}")
        answer: Answer = json.loads(said)
        return answer

    def kill(self) -> None:
        self._process.kill()


def daemon(wal: Wal, slot: str, *, unix: bool = False, scratch: bool = False, **job: Any) -> DaemonReader:
    """See `child.Job` for the other options."""
    return DaemonReader(Job(url=wal.url(unix), store_url=wal.url(), slot=slot, **job), scratch=scratch)


def drain_by_daemon(wal: Wal, *, unix: bool, scratch: bool = False) -> Drained:
    """Astha: measured to the last event of the slowest of four lanes."""
    with watched_slot(wal) as (slot, walsender):
        answer = daemon(wal, slot, unix=unix, scratch=scratch, expect=wal.written).finish()
    return Drained.by(walsender, wal.written, answer["last_at"], answer["cpu"], answer)


def drain_by_recvlogical(wal: Wal, *, unix: bool) -> Drained:
    """Measured to the end of the process."""
    host = str(wal.server.directory) if unix else "127.0.0.1"
    command = [str(_recvlogical(wal.server)), "-h", host, "-p", str(wal.server.port), "-U", "postgres", "-d", wal.name]
    command += ["--start", "-f", os.devnull, "--endpos", wal.end()]
    for option in ("proto_version=1", "publication_names=astha", "binary=true"):
        command += ["-o", option]
    with watched_slot(wal) as (slot, walsender):
        cpu = _cpu_of_ended_children()
        subprocess.run([*command, "-S", slot], check=True, capture_output=True)
        ended = time.time()
    return Drained.by(walsender, wal.written, ended, _cpu_of_ended_children() - cpu, {})


def drain_by_debezium(wal: Wal) -> Drained:
    """Measured to the last record in its handler."""
    with watched_slot(wal) as (slot, walsender):
        answer = DebeziumReader(wal, slot, engine.BULK, expect=wal.written).finish()
    return Drained.by(walsender, answer["events"], answer["last_at"], answer["cpu"], answer)


@contextmanager
def watched_slot(wal: Wal, components: Sequence[str] = LANES) -> Iterator[tuple[str, WalsenderWatch]]:
    with wal.fresh_slot(components) as slot, WalsenderWatch(wal.url(), slot) as walsender:
        yield slot, walsender


def _recvlogical(server: EmbeddedPostgres) -> Path:
    program = server.bin / "pg_recvlogical"
    if not program.exists():
        raise SystemExit(f"no pg_recvlogical beside {server.bin}: install PostgreSQL's client programs")
    return program


def _cpu_of_ended_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
