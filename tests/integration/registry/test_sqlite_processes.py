"""Several processes, each with several tasks, write one SQLite file without a "database is locked" error."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from registry.connect import open_store
from registry.engines import StoreSettings, parse_url, sqlite_path
from registry.errors import Unavailable
from registry.models import Segment
from tests.contracts.contents import assert_counted, contents
from tests.samples import TABLE, file, segment

PROCESSES, TASKS, TURNS = 3, 4, 8


async def _write(url: str, process: int) -> None:
    store = await open_store(url, settings=StoreSettings(busy_timeout_s=60))

    async def task(number: int) -> None:
        mine = process * TASKS + number
        for turn in range(TURNS):
            await store.add_segment(segment(turn * 10, partition=mine))
            await store.commit_offset("readers", "orders", mine, turn)
            await store.add_files(1, [file(f"{mine}-{turn}", partition=f"p{turn % 3}")])
            assert await store.find_segment_for_offset("orders", mine, turn * 10) is not None

    try:
        await asyncio.gather(*(task(number) for number in range(TASKS)))
    finally:
        await store.close()


def _process(url: str, number: int, start: Any, answers: Any) -> None:
    start.wait()
    try:
        asyncio.run(_write(url, number))
        answers.put(None)
    except BaseException as error:
        answers.put(repr(error))


@pytest.mark.slow
async def test_nothing_is_lost_and_nothing_is_locked(sqlite_url: str) -> None:
    store = await open_store(sqlite_url)
    await store.create_topic("orders", PROCESSES * TASKS)
    await store.ensure_consumer_group("readers")
    await store.create_table("db", "t", "s3://lake/t", TABLE)
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(target=_process, args=(sqlite_url, number, start, answers)) for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    failures = [await asyncio.to_thread(answers.get, timeout=180) for _ in processes]
    for process in processes:
        await asyncio.to_thread(process.join, 60)
        process.close()
    answers.close()
    answers.join_thread()
    assert failures == [None] * PROCESSES
    found = await contents(store)
    segments = [row for row in found["segments"] if isinstance(row, Segment)]
    assert len(segments) == PROCESSES * TASKS * TURNS
    assert len(found["table_files"]) == PROCESSES * TASKS * TURNS
    assert len(found["consumer_offsets"]) == PROCESSES * TASKS
    await assert_counted(store, 1)
    await store.close()
    with closing(sqlite3.connect(sqlite_path(parse_url(sqlite_url)))) as connection:
        (numbered,) = connection.execute(
            "SELECT count(DISTINCT transaction_number) FROM change_log WHERE table_name = 'segments'"
        ).fetchone()
        (interleaved,) = connection.execute(
            "SELECT count(*) FROM (SELECT transaction_number, max(sequence) - min(sequence) + 1 AS span, count(*) AS n "
            "FROM change_log GROUP BY transaction_number HAVING span <> n)"
        ).fetchone()
    assert numbered == len(segments)  # no number was given twice
    assert interleaved == 0  # and no transaction has another's rows between its own


async def test_a_writer_waits_for_another_process(sqlite_url: str) -> None:
    """Another process holds the lock for less than the busy timeout."""
    store = await open_store(sqlite_url, settings=StoreSettings(busy_timeout_s=60))
    with closing(sqlite3.connect(sqlite_path(parse_url(sqlite_url)), isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        waiting = [asyncio.create_task(store.create_topic(f"topic-{number}", 1)) for number in range(5)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in waiting)
        assert await store.list_topics() == []  # readers do not wait
        stranger.execute("COMMIT")
        await asyncio.gather(*waiting)
    await store.close()


async def test_a_lock_held_too_long_is_unavailable(sqlite_url: str) -> None:
    store = await open_store(sqlite_url, settings=StoreSettings(busy_timeout_s=0.05))
    with closing(sqlite3.connect(sqlite_path(parse_url(sqlite_url)), isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            await store.create_topic("orders", 1)
        stranger.execute("COMMIT")
    await store.create_topic("orders", 1)
    await store.close()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disables garbage collection, so that it releases nothing by chance."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
async def test_a_cancelled_writer_releases_the_database_lock(sqlite_url: str) -> None:
    """At once, not when Python collects the unfinished statement."""
    store = await open_store(sqlite_url)
    await store.create_topic("orders", 1)
    with closing(sqlite3.connect(sqlite_path(parse_url(sqlite_url)), timeout=5, isolation_level=None)) as stranger:
        for number in range(120):
            task = asyncio.create_task(store.add_segments([segment(number * 100), segment(number * 100 + 10)]))
            await asyncio.wait({task}, timeout=number % 40 / 4_000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            stranger.execute("BEGIN IMMEDIATE")
            stranger.execute("ROLLBACK")
    await store.close()
