"""Each record is in the table once, wherever a round was broken off and whoever else was at it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from components.commands.topic_to_table.errors import RoundFailed
from registry.contract import MetadataStore
from registry.errors import Unavailable
from tests.contracts.contents import assert_counted
from tests.integration.components.commands.topic_to_table.harness import (
    TABLE,
    TOPIC,
    Killed,
    Shop,
    finish,
    open_shop,
    orders,
)

GROUP = f"to-table:{TABLE}"
STEPS = ["planned", "written", "to be registered", "registered", "to be aborted"]


@pytest.fixture
async def shop(url: str, warehouse: Path) -> AsyncIterator[Shop]:
    async with open_shop(url, warehouse) as opened:
        yield opened


async def committed(shop: Shop) -> dict[int, int]:
    return {row.partition_id: row.committed_offset for row in await shop.store.get_consumer_offsets(GROUP)}


def once(step: str, error: BaseException) -> Callable[[str], None]:
    """Raises at the first such step, and never again."""
    errors = [error]

    def at(name: str) -> None:
        if name == step and errors:
            raise errors.pop()

    return at


async def test_round_after_round(shop: Shop) -> None:
    await shop.produce((0, orders(0, 30)), (0, orders(30, 30)), (1, orders(60, 40)))
    job = await finish(shop.job(max_bytes=1))
    assert (job.tally.rounds, job.tally.records, job.tally.rows, job.tally.files) == (3, 100, 100, 3)
    assert await shop.ids() == list(range(100))
    assert await committed(shop) == {0: 60, 1: 40}
    await shop.produce((0, orders(100, 5)), (2, orders(105, 5)))
    again = await finish(shop.job())
    assert (again.tally.rounds, again.tally.rows, again.standing and again.standing.lag()) == (1, 10, 0)
    assert await shop.ids() == list(range(110))
    assert (await finish(shop.job())).tally.rounds == 0
    await assert_counted(shop.store, shop.table.id)
    await shop.assert_tidy()


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_any_step(shop: Shop, step: str) -> None:
    await shop.produce((0, orders(0, 30)), (1, orders(30, 30)))
    at = once(step, Killed())

    def die(name: str) -> None:
        at(name)
        if step == "to be aborted" and name == "to be registered":
            raise RoundFailed("on its way to an abort")

    with pytest.raises(Killed):
        await finish(shop.job(die))
    assert await committed(shop) in ({}, {0: 30, 1: 30})
    assert len(await shop.ids()) == sum((await committed(shop)).values())
    await finish(shop.job())
    assert await shop.ids() == list(range(60))
    await shop.assert_tidy()


async def test_an_answer_that_was_lost_is_looked_up(shop: Shop) -> None:
    """Registered, and then an error: the job sees that it is its own round, and counts it."""
    await shop.produce((0, orders(0, 30)), (1, orders(30, 30)))
    job = await finish(shop.job(once("registered", Unavailable("no answer"))))
    assert (job.tally.rounds, job.tally.rows, job.tally.overtaken) == (1, 60, 0)
    assert await shop.ids() == list(range(60))
    await shop.assert_tidy()


@pytest.mark.parametrize("step", ["planned", "written", "to be registered"])
async def test_a_round_that_failed_has_written_nothing(shop: Shop, step: str) -> None:
    await shop.produce((0, orders(0, 30)), (1, orders(30, 30)))
    with pytest.raises(Unavailable):
        await finish(shop.job(once(step, Unavailable("not now"))))
    assert await committed(shop) == {}
    assert await shop.ids() == []
    await shop.assert_tidy()
    await finish(shop.job())
    assert await shop.ids() == list(range(60))


async def test_several_at_once(shop: Shop, store: MetadataStore) -> None:
    for turn in range(6):
        await shop.produce((turn % 3, orders(turn * 20, 20)))
    jobs = [shop.job(store=(shop.store, store)[number % 2], max_bytes=1) for number in range(3)]
    await asyncio.gather(*(finish(job) for job in jobs))
    assert await shop.ids() == list(range(120))
    assert sum(job.tally.rows for job in jobs) == 120
    assert sum(job.tally.rounds for job in jobs) == 6
    await assert_counted(shop.store, shop.table.id)
    await shop.assert_tidy()


async def test_one_that_was_overtaken_leaves_its_round_to_the_other(shop: Shop) -> None:
    """A process that was paused, and wakes up when another has done its work."""
    await shop.produce((0, orders(0, 30)))
    loop = asyncio.get_running_loop()

    def let_another_pass(name: str) -> None:
        if name == "to be registered" and not passed:
            passed.append(name)
            asyncio.run_coroutine_threadsafe(finish(shop.job()), loop).result(60)

    passed: list[str] = []
    late = await finish(shop.job(let_another_pass))
    assert (late.tally.overtaken, late.tally.rows) == (1, 0)
    assert await shop.ids() == list(range(30))
    await shop.assert_tidy()


async def test_records_that_do_not_all_come_are_not_registered(shop: Shop) -> None:
    """Segments that were trimmed after the plan: the round fails rather than go on without them."""
    await shop.produce((0, orders(0, 30)), (0, orders(30, 30)))
    loop = asyncio.get_running_loop()

    def trim(name: str) -> None:
        if name == "planned":
            call = shop.store.delete_segments_before(TOPIC, 0, 30)
            asyncio.run_coroutine_threadsafe(call, loop).result(60)

    with pytest.raises(Exception, match="offset 0 of orders/0 is no longer retained"):
        await finish(shop.job(trim))
    assert await committed(shop) == {}
    await shop.assert_tidy()
    await shop.store.commit_offset(GROUP, TOPIC, 0, 0)
    with pytest.raises(Exception, match="offset 0 of orders/0 is no longer retained"):
        await finish(shop.job())
    job = await finish(shop.job(skip_lost=True))
    assert (job.tally.rows, job.tally.lost) == (30, 30)
    assert await shop.ids() == list(range(30, 60))


async def test_all_that_is_left_was_deleted(shop: Shop) -> None:
    await shop.produce((0, orders(0, 30)))
    await finish(shop.job())
    await shop.produce((0, orders(30, 30)))
    await shop.store.delete_segments_before(TOPIC, 0, 60)
    job = await finish(shop.job(skip_lost=True))
    assert (job.tally.rows, job.tally.lost, await committed(shop)) == (0, 30, {0: 60})
    assert (await finish(shop.job(skip_lost=True))).tally.rounds == 0
