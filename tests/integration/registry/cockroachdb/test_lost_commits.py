"""Commits that fail, and commits whose answer is lost: each verb happens once, and returns what it did.

On PostgreSQL at SERIALIZABLE, behind a proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import get_args

import pytest
from sqlalchemy import make_url

from registry.engines import StoreSettings
from registry.errors import AlreadyExists, Unavailable
from registry.stores.cockroachdb.retries import Retries
from registry.stores.cockroachdb.transactions import CommitAttempts
from tests.doubles.clock import ManualClock
from tests.doubles.failing_postgres import FailingPostgres, Fault, Plan
from tests.doubles.serializable_postgres import SerializablePostgresStore
from tests.samples import TABLE, file, segment

FAULTS: tuple[Fault, ...] = get_args(Fault)


class Script:
    """Fails the next requests that commit, or that do not, in this order; then none."""

    def __init__(self) -> None:
        self.commits: list[Fault] = []
        self.statements: list[Fault] = []
        self.always: Fault | None = None

    def __call__(self, _: str, commits_now: bool) -> Fault | None:
        if self.always is not None:
            return self.always
        planned = self.commits if commits_now else self.statements
        return planned.pop(0) if planned else None


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def failing(
    serializable_url: str, script: Script, clock: ManualClock
) -> AsyncIterator[SerializablePostgresStore]:
    async with AsyncExitStack() as stack:
        yield await _open(stack, serializable_url, script, clock, Retries(attempts=8, within_s=0.0, longest_s=0.05))


async def _open(
    stack: AsyncExitStack, url: str, plan: Plan, clock: ManualClock, retries: Retries | None = None
) -> SerializablePostgresStore:
    direct = make_url(url).set(drivername="postgresql")
    assert direct.host is not None
    assert direct.port is not None
    proxy = await stack.enter_async_context(FailingPostgres(direct.host, direct.port, plan))
    through = direct.set(host="127.0.0.1", port=proxy.port)
    store = SerializablePostgresStore(through, clock, StoreSettings(), retries)
    stack.push_async_callback(store.close)
    return store


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_commit_with_an_unknown_outcome_is_looked_up(
    failing: SerializablePostgresStore, script: Script, fault: Fault
) -> None:
    """Verbs whose repetition is an error, adds up, or counts an epoch: all happen once."""
    script.commits = [fault]
    topic = await failing.create_topic("orders", 2)
    assert script.commits == []
    assert await failing.get_topic("orders") == topic
    script.commits = [fault, fault]
    table = await failing.create_table("db", "t", "s3://lake/t", TABLE)
    script.commits = [fault, fault]
    added = await failing.add_files(table.id, [file("a"), file("b")])
    assert await failing.list_files(table.id) == added
    (statistics,) = await failing.get_statistics(table.id)
    assert statistics.file_count == 2
    await failing.register_agent("one", "host:1")
    script.commits = [fault]
    assert (await failing.acquire_partition_lease("orders", 0, "one", 1_000)).epoch == 1
    script.commits = [fault]
    assert (await failing.acquire_partition_lease("orders", 0, "one", 1_000)).epoch == 2
    script.commits = [fault]
    with pytest.raises(AlreadyExists, match="'orders' exists"):
        await failing.create_topic("orders", 2)


@pytest.mark.parametrize("fault", ["conflict", "lose request"])
async def test_a_statement_that_fails_before_the_commit_repeats_the_verb(
    failing: SerializablePostgresStore, script: Script, fault: Fault
) -> None:
    await failing.create_topic("orders", 1)
    script.statements = [fault]
    await failing.add_segment(segment(0))
    script.statements = [fault, fault]
    await failing.add_segment(segment(10))
    assert [row.base_offset for row in await failing.get_segments("orders", 0)] == [0, 10]


async def test_a_verb_that_always_fails_ends_as_unavailable(failing: SerializablePostgresStore, script: Script) -> None:
    script.always = "conflict"
    with pytest.raises(Unavailable, match=r"restart transaction \(injected\).* \(8 attempts\)"):
        await failing.create_topic("orders", 1)
    script.always = None
    assert await failing.get_topic("orders") is None
    await failing.create_topic("orders", 1)


async def test_a_transaction_that_is_taken_for_lost_cannot_commit_later(failing: SerializablePostgresStore) -> None:
    attempts = CommitAttempts()
    async with failing._autocommit() as connection:
        assert not await attempts.resolve(connection, "late", 1)
        assert not await attempts.resolve(connection, "late", 2)  # every caller gets the same answer
    with pytest.raises(AlreadyExists, match="commit_attempts"):
        async with failing._autocommit() as connection:
            await connection.exec_driver_sql("INSERT INTO commit_attempts VALUES ('late', true, 3)")


async def test_looking_up_waits_for_a_commit_in_progress(failing: SerializablePostgresStore) -> None:
    """The answer of a COMMIT may be lost while the server still works on it."""
    async with failing._autocommit() as connection:
        await connection.exec_driver_sql("BEGIN")
        await connection.exec_driver_sql("INSERT INTO commit_attempts VALUES ('slow', true, 1)")
        looking = asyncio.create_task(failing.retries.run(lambda: failing._resolve("slow")))
        await failing.list_topics()  # a round trip, so that the other one has begun
        assert not looking.done()
        await connection.exec_driver_sql("COMMIT")
    assert await asyncio.wait_for(looking, 60)


async def test_rows_of_known_commits_are_deleted(failing: SerializablePostgresStore) -> None:
    for number in range(220):
        await failing.ensure_consumer_group(f"g{number}")
    async with failing._autocommit() as connection:
        left = (await connection.exec_driver_sql("SELECT count(*) FROM commit_attempts")).scalar_one()
    assert left <= 120


async def test_a_load_keeps_writers_out_and_is_looked_up_too(
    failing: SerializablePostgresStore, script: Script
) -> None:
    entered, finish = asyncio.Event(), asyncio.Event()

    async def load() -> None:
        async with failing.load():
            entered.set()
            await finish.wait()

    loading = asyncio.create_task(load())
    await asyncio.wait_for(entered.wait(), 60)
    writer = asyncio.create_task(failing.create_topic("orders", 1))
    assert await failing.list_topics() == []  # readers do not wait
    assert not writer.done()
    finish.set()
    await asyncio.wait_for(loading, 60)
    await asyncio.wait_for(writer, 60)
