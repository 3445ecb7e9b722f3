"""Bulk registration of segments, against the fastest way that the same rows get into the same table."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
import psycopg

from benchmarks.registries import new_registry
from benchmarks.report import Report, interleaved, rates
from registry.connect import open_store
from registry.embedded_postgres import EmbeddedPostgres
from registry.inputs import SegmentDraft
from registry.migrate import migrate

BATCH = 10_000
PARTITIONS = 100
COLUMNS = (*SegmentDraft.__struct_fields__, "created_at")

Rows = list[tuple[object, ...]]


class Batches:
    """The same 10,000 segments over 100 partitions again and again, only with offsets that go on."""

    def __init__(self, topic: str = "bulk") -> None:
        self._topic = topic
        self._next = 0

    def drafts(self) -> list[SegmentDraft]:
        first, self._next = self._next, self._next + BATCH // PARTITIONS
        return [
            SegmentDraft(
                self._topic,
                partition,
                number * 500,
                number * 500 + 499,
                500,
                65_536,
                "lake",
                f"{self._topic}/{number}",
            )
            for partition in range(PARTITIONS)
            for number in range(first, self._next)
        ]

    def rows(self) -> Rows:
        return [(*msgspec.structs.astuple(draft), 1_700_000_000_000) for draft in self.drafts()]


async def bulk_insert_vs_copy(report: Report, server: EmbeddedPostgres) -> None:
    url, store = await new_registry(server, "bulk")
    await store.create_topic("bulk", PARTITIONS)
    rounds, batches = report.pick(15, 5), Batches()
    # Offsets grow from round to round, as a log's do: a segment that comes late takes another path.
    given, copied, blocks = [], [], []
    for _ in range(rounds):
        given.append(batches.drafts())
        copied.append(batches.rows())
        blocks.append(text_block(batches.rows()))
    with psycopg.connect(url) as connection:
        connection.execute("ANALYZE partitions")
        connection.commit()

        async def bulk(number: int) -> None:
            await store.add_segments(given[number])

        async def copy(number: int) -> None:
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY segments ({', '.join(COLUMNS)}) FROM STDIN") as copy,
            ):
                for row in copied[number]:
                    copy.write_row(row)
            connection.commit()

        async def block(number: int) -> None:
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY segments ({', '.join(COLUMNS)}) FROM STDIN") as copy,
            ):
                copy.write(blocks[number])
            connection.commit()

        seconds = await interleaved(rounds, bulk=bulk, copy=copy, block=block)
    await store.close()
    report.add(
        "bulk_insert_vs_copy",
        median(seconds["copy"]) / median(seconds["bulk"]),
        f"segments/s, batches of 10,000 over {PARTITIONS} partitions in one table with its indexes and foreign keys: "
        f"add_segments ({rates(BATCH, seconds['bulk']):,.0f}/s; it also checks, locks partitions, moves watermarks and "
        f"completes intents) over psycopg's COPY by write_row ({rates(BATCH, seconds['copy']):,.0f}/s; rows only). "
        f"COPY of text made before the clock started: {rates(BATCH, seconds['block']):,.0f}/s",
        at_least=0.6,
    )


def text_block(rows: Rows) -> bytes:
    return "".join("\t".join("\\N" if item is None else str(item) for item in row) + "\n" for row in rows).encode()


async def sqlite_bulk_vs_executemany(report: Report) -> None:
    rounds, batches = report.pick(15, 5), Batches()
    with tempfile.TemporaryDirectory(prefix="astha-benchmark-") as directory:
        path = Path(directory) / "registry.db"
        await asyncio.to_thread(migrate, f"sqlite:///{path}")
        store = await open_store(f"sqlite:///{path}")
        await store.create_topic("bulk", PARTITIONS)
        given, plain = [], []
        for _ in range(rounds):
            given.append(batches.drafts())
            plain.append(batches.rows())
        with _sqlite_like_ours(path) as connection:
            insert = f"INSERT INTO segments ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"

            async def bulk(number: int) -> None:
                await store.add_segments(given[number])

            async def many(number: int) -> None:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(insert, plain[number])
                connection.execute("COMMIT")

            seconds = await interleaved(rounds, bulk=bulk, many=many)
        await store.close()
    report.add(
        "sqlite_bulk_vs_executemany",
        median(seconds["many"]) / median(seconds["bulk"]),
        f"segments/s, the same batches in one file with indexes, foreign keys and change log: add_segments "
        f"({rates(BATCH, seconds['bulk']):,.0f}/s) over sqlite3's executemany in one transaction with the same pragmas "
        f"({rates(BATCH, seconds['many']):,.0f}/s; rows only)",
        at_least=0.5,
    )


@contextmanager
def _sqlite_like_ours(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        yield connection
    finally:
        connection.close()
