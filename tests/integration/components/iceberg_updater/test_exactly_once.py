"""After a failure at any step, a restart and a redelivery, every transaction is in Iceberg exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from astha.errors import DeliveryError
from components.lib.lake.iceberg import Stamp
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.integration.components.iceberg_updater.faulty import Faults, break_catalog


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    Faults.at(None)
    yield
    Faults.at(None)


async def restart_with_faults(lake: Lake) -> None:
    await lake.restart()
    thread = lake.updater._thread
    assert thread is not None
    catalog = thread.committer.tables.catalog
    catalog.properties["py-io-impl"] = f"{Faults.__module__}.FaultyFileIO"
    break_catalog(catalog)


@pytest.mark.parametrize("after_effect", [False, True])
async def test_redelivery_after_a_failure_at_every_step(lake: Lake, after_effect: bool) -> None:
    """Creation, an append, a swap and a removal in one batch; each round in a table of its own."""
    step, met = 0, True
    while met:
        step += 1
        await restart_with_faults(lake)
        table = await lake.create(f"t{step}")
        small = [file for number in range(2) for file in await lake.insert(table, number)]
        large = await lake.compact(table, small, 0, 1)
        await lake.insert(table, 5)
        await lake.remove(table, large)
        given, lake.pending = lake.pending, []
        Faults.at(step, after_effect=after_effect)
        with suppress(DeliveryError):
            await lake.updater.on_transactions(given)
        met = len(Faults.steps) >= step
        Faults.at(None)
        await lake.restart()
        await lake.updater.on_transactions(given)
        assert lake.ids(table) == [5], f"broken at step {step}"
        assert lake.operations(table) == ["append", "replace", "overwrite"], f"broken at step {step}"
        await lake.require_agreement(table)
        assert Stamp.read(lake.load(table).metadata).position == given[-1][0].position
        await lake.drop(table)
        await lake.deliver()
    assert step > 15, "the faults were injected"


async def test_redelivery_without_a_restart(lake: Lake) -> None:
    """As the lane does it: without a restart in between, so the cached state must be correct."""
    table = await lake.create()
    await lake.insert(table, 0)
    await restart_with_faults(lake)
    await lake.deliver()
    for step in range(1, 30):
        await lake.insert(table, step)
        given, lake.pending = lake.pending, []
        Faults.at(step % 11 + 1, after_effect=step % 2 == 0)
        for _ in range(3):
            try:
                await lake.updater.on_transactions(given)
            except DeliveryError:
                continue
            break
        else:
            raise AssertionError("never delivered")
        Faults.at(None)
        assert lake.ids(table) == list(range(step + 1))
    await lake.require_agreement(table)


async def test_a_failed_refresh_is_repeated(lake: Lake) -> None:
    first, second = await lake.create("first"), await lake.create("second")
    await lake.insert(first, 1)
    await lake.insert(second, 2)
    await lake.deliver()
    for step in range(1, 40, 3):
        await restart_with_faults(lake)
        await lake.insert(first, step * 10)
        await lake.insert(second, step * 10 + 1)
        await lake.remove(first, await lake.store.list_files(first.id, limit=1))
        Faults.at(step, after_effect=step % 2 == 0)
        try:
            await lake.refresh()
        except DeliveryError:
            Faults.at(None)
            await lake.refresh()
        Faults.at(None)
        await lake.settled()
        await lake.require_agreement(first, second)
        assert lake.stopped(first) is None
        assert lake.stopped(second) is None
