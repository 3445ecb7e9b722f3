"""Each record is in the table once, wherever a micro-batch was interrupted, also beside another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from components.commands.topic_to_table.errors import MicroBatchFailed
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


async def test_several_micro_batches(shop: Shop) -> None:
    await shop.produce((0, orders(0, 30)), (0, orders(30, 30)), (1, orders(60, 40)))
    sink = await finish(shop.sink(max_bytes=1))
    assert (sink.totals.batches, sink.totals.records, sink.totals.rows, sink.totals.files) == (3, 100, 100, 3)
    assert await shop.ids() == list(range(100))
    assert await committed(shop) == {0: 60, 1: 40}
    await shop.produce((0, orders(100, 5)), (2, orders(105, 5)))
    again = await finish(shop.sink())
    assert (again.totals.batches, again.totals.rows, again.progress and again.progress.lag()) == (1, 10, 0)
    assert await shop.ids() == list(range(110))
    assert (await finish(shop.sink())).totals.batches == 0
    await assert_counted(shop.store, shop.table.id)
    await shop.assert_tidy()


@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_any_step(shop: Shop, step: str) -> None:
    await shop.produce((0, orders(0, 30)), (1, orders(30, 30)))
    at = once(step, Killed())

    def die(name: str) -> None:
        at(name)
        if step == "to be aborted" and name == "to be registered":
            raise MicroBatchFailed("on its way to an abort")

    with pytest.raises(Killed):
        await finish(shop.sink(die))
    assert await committed(shop) in ({}, {0: 30, 1: 30})
    assert len(await shop.ids()) == sum((await committed(shop)).values())
    await finish(shop.sink())
    assert await shop.ids() == list(range(60))
    await shop.assert_tidy()


async def test_a_lost_response_is_looked_up(shop: Shop) -> None:
    """An error after the registration: the sink finds its own micro-batch registered, and counts it."""
    await shop.produce((0, orders(0, 30)), (1, orders(30, 30)))
    sink = await finish(shop.sink(once("registered", Unavailable("no answer"))))
    assert (sink.totals.batches, sink.totals.rows, sink.totals.overtaken) == (1, 60, 0)
    assert await shop.ids() == list(range(60))
    await shop.assert_tidy()


@pytest.mark.parametrize("step", ["planned", "written", "to be registered"])
async def test_a_failed_micro_batch_registers_nothing(shop: Shop, step: str) -> None:
    await shop.produce((0, orders(0, 30)), (1, orders(30, 30)))
    with pytest.raises(Unavailable):
        await finish(shop.sink(once(step, Unavailable("not now"))))
    assert await committed(shop) == {}
    assert await shop.ids() == []
    await shop.assert_tidy()
    await finish(shop.sink())
    assert await shop.ids() == list(range(60))


async def test_several_sinks_at_a_time(shop: Shop, store: MetadataStore) -> None:
    for turn in range(6):
        await shop.produce((turn % 3, orders(turn * 20, 20)))
    sinks = [shop.sink(store=(shop.store, store)[number % 2], max_bytes=1) for number in range(3)]
    await asyncio.gather(*(finish(sink) for sink in sinks))
    assert await shop.ids() == list(range(120))
    assert sum(sink.totals.rows for sink in sinks) == 120
    assert sum(sink.totals.batches for sink in sinks) == 6
    await assert_counted(shop.store, shop.table.id)
    await shop.assert_tidy()


async def test_a_sink_that_was_overtaken_registers_nothing(shop: Shop) -> None:
    """A process is paused, and resumes when another has done its work."""
    await shop.produce((0, orders(0, 30)))
    loop = asyncio.get_running_loop()

    def let_another_finish(name: str) -> None:
        if name == "to be registered" and not passed:
            passed.append(name)
            asyncio.run_coroutine_threadsafe(finish(shop.sink()), loop).result(60)

    passed: list[str] = []
    late = await finish(shop.sink(let_another_finish))
    assert (late.totals.overtaken, late.totals.rows) == (1, 0)
    assert await shop.ids() == list(range(30))
    await shop.assert_tidy()


async def test_a_micro_batch_with_missing_records_is_not_registered(shop: Shop) -> None:
    """Segments are trimmed after the plan: the micro-batch fails instead of continuing without them."""
    await shop.produce((0, orders(0, 30)), (0, orders(30, 30)))
    loop = asyncio.get_running_loop()

    def trim(name: str) -> None:
        if name == "planned":
            call = shop.store.delete_segments_before(TOPIC, 0, 30)
            asyncio.run_coroutine_threadsafe(call, loop).result(60)

    with pytest.raises(Exception, match="offset 0 of orders/0 is no longer retained"):
        await finish(shop.sink(trim))
    assert await committed(shop) == {}
    await shop.assert_tidy()
    await shop.store.commit_offset(GROUP, TOPIC, 0, 0)
    with pytest.raises(Exception, match="offset 0 of orders/0 is no longer retained"):
        await finish(shop.sink())
    sink = await finish(shop.sink(skip_lost=True))
    assert (sink.totals.rows, sink.totals.lost) == (30, 30)
    assert await shop.ids() == list(range(30, 60))


async def test_all_remaining_records_were_deleted(shop: Shop) -> None:
    await shop.produce((0, orders(0, 30)))
    await finish(shop.sink())
    await shop.produce((0, orders(30, 30)))
    await shop.store.delete_segments_before(TOPIC, 0, 60)
    sink = await finish(shop.sink(skip_lost=True))
    assert (sink.totals.rows, sink.totals.lost, await committed(shop)) == (0, 30, {0: 60})
    assert (await finish(shop.sink(skip_lost=True))).totals.batches == 0
