"""Registration of segments by several processes at once, beside COPY of the same rows by as many."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter

import psycopg

from benchmarks.processes import cpu_seconds, tree_cpu_seconds
from benchmarks.registries import new_registry
from benchmarks.registry.writes import BATCH, COLUMNS, PARTITIONS, Batches, text_block
from benchmarks.report import Report
from registry.connect import open_store
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import SegmentDraft

WRITERS = 3
_LIMIT_S = 300


class WriterProcess:
    """Writes to a topic of its own, as an agent writes to its own partitions."""

    def __init__(self, url: str, topic: str, rounds: int, calls: int) -> None:
        """`calls`: of one round."""
        processes = multiprocessing.get_context("spawn")
        self._words, theirs = processes.Pipe()
        self._process = processes.Process(target=_serve, args=(url, topic, (rounds, calls), theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def cpu_s(self) -> float:
        return cpu_seconds(self._process.pid or 0)

    def tell(self, how: str, number: int) -> None:
        self._words.send((how, number))

    def wait(self) -> None:
        if not self._words.poll(_LIMIT_S):
            raise SystemExit(f"a writer says nothing for {_LIMIT_S} s")
        try:
            self._words.recv()
        except EOFError:
            raise SystemExit("a writer has died") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(url: str, topic: str, amount: tuple[int, int], parent: Connection) -> None:
    asyncio.run(_write(url, topic, amount, parent))


async def _write(url: str, topic: str, amount: tuple[int, int], parent: Connection) -> None:
    store = await open_store(url)
    await store.create_topic(topic, PARTITIONS)
    batches = Batches(topic)
    given: list[list[list[SegmentDraft]]] = []
    copied: list[list[bytes]] = []
    rounds, calls = amount
    for _ in range(rounds):
        given.append([batches.drafts() for _ in range(calls)])
        copied.append([text_block(batches.rows()) for _ in range(calls)])
    with psycopg.connect(url) as connection:
        parent.send(None)
        while True:
            how, number = await asyncio.to_thread(parent.recv)
            if how == "bulk":
                for drafts in given[number]:
                    await store.add_segments(drafts)
            else:
                for block in copied[number]:
                    _copy(connection, block)
            parent.send(None)


def _copy(connection: psycopg.Connection[tuple[object, ...]], block: bytes) -> None:
    with connection.cursor() as cursor, cursor.copy(f"COPY segments ({', '.join(COLUMNS)}) FROM STDIN") as copy:
        copy.write(block)
    connection.commit()


async def add_segments_vs_copy(report: Report, server: EmbeddedPostgres) -> None:
    url, store = await new_registry(server, "parallel")
    rounds, calls = report.pick(12, 3), report.pick(3, 1)
    rows = WRITERS * calls * BATCH
    rates: dict[str, list[float]] = {"bulk": [], "copy": []}
    cores: dict[str, list[tuple[float, float]]] = {"bulk": [], "copy": []}
    with ExitStack() as stack:
        writers = [WriterProcess(url, f"bulk-{number}", rounds, calls) for number in range(WRITERS)]
        for writer in writers:
            stack.callback(writer.kill)
        await _all(writers)
        for number in range(rounds):
            for how in ("bulk", "copy") if number % 2 else ("copy", "bulk"):
                ours, all_ = sum(writer.cpu_s for writer in writers), tree_cpu_seconds()
                started = perf_counter()
                for writer in writers:
                    writer.tell(how, number)
                await _all(writers)
                seconds = perf_counter() - started
                ours, all_ = sum(writer.cpu_s for writer in writers) - ours, tree_cpu_seconds() - all_
                if number:  # the first round warms up
                    rates[how].append(rows / seconds)
                    cores[how].append((ours / seconds, (all_ - ours) / seconds))
    await store.close()
    bulk, copy = median(rates["bulk"]), median(rates["copy"])
    mine, servers = (median(pair[which] for pair in cores["bulk"]) for which in (0, 1))
    report.add(
        "add_segments_per_s", bulk,
        f"rows/s by {WRITERS} processes that register 10,000 segments of {PARTITIONS} partitions of their own at a "
        f"time, {mine:.2f} cores for them and {servers:.2f} for PostgreSQL: {bulk / (mine + servers):,.0f} per core",
        at_least=100_000,
    )  # fmt: skip
    report.add(
        "add_segments_vs_copy", bulk / copy,
        f"the same over COPY of text made before, by as many processes ({copy:,.0f} rows/s): rows only, without "
        f"checks, watermarks and objects",
        at_least=0.6,
    )  # fmt: skip


async def _all(writers: Iterable[WriterProcess]) -> None:
    for writer in writers:
        await asyncio.to_thread(writer.wait)
