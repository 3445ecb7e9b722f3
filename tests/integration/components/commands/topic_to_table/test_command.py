"""`astha topics to-table` without Spark: what it refuses before it starts a session, and --follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from astha.cli.root import main
from astha.clock import SystemLoopClock
from components.commands.topic_to_table import session
from components.commands.topic_to_table.runner import SinkRunner
from components.lib.streams.read_context import open_read_context
from registry.errors import Unavailable
from tests.integration.components.commands.topic_to_table.harness import (
    LocalMicroBatches,
    Shop,
    open_shop,
    order,
    orders,
)
from tests.waiting import eventually


@pytest.fixture
async def shop(url: str, warehouse: Path) -> AsyncIterator[Shop]:
    async with open_shop(url, warehouse) as opened:
        yield opened


class LocalRunner(LocalMicroBatches):
    """Stands for a Spark session."""

    def __init__(self, _chosen: object, settings: Any) -> None:
        super().__init__(settings)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


@contextmanager
def without_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(session, "SparkRunner", LocalRunner)
        yield


async def ask(shop: Shop, *arguments: str) -> Result:
    given = ["topics", "to-table", *arguments, "--registry", shop.url, "--set", f"lake.warehouse={shop.warehouse}"]
    return await asyncio.to_thread(CliRunner().invoke, main, given)


async def test_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler", lambda *_: None)
    await shop.produce((0, orders(0, 30)), (1, [order(30), b"{"]))
    with without_spark(monkeypatch):
        refused = await ask(shop, "orders", "shop.orders")
        assert refused.exit_code == 1
        assert "orders/1, offset 1: not a JSON object" in refused.stderr
        assert "--bad skip" in refused.stderr
        done = await ask(shop, "orders", "shop.orders", "--bad", "skip", "--json")
        assert done.exit_code == 0, done.output
        printed = json.loads(done.stdout)
        assert (printed["rows"], printed["skipped"], printed["lag"], printed["group"]) == (
            31,
            1,
            0,
            "to-table:shop.orders",
        )
        again = await ask(shop, "orders", "shop.orders")
        assert again.stdout.startswith("shop.orders: 0 rows in 0 files; lag 0")
    assert await shop.ids() == list(range(31))


async def test_missing_things_are_reported_before_spark_is_started(shop: Shop) -> None:
    for arguments, words in (
        (("nothing", "shop.orders"), "nothing"),
        (("orders", "shop.nothing"), "there is no table shop.nothing"),
        (("orders", "shop.orders", "--values", "record"), "has none of the columns"),
    ):
        result = await ask(shop, *arguments)
        assert result.exit_code == 1
        assert words in result.stderr
    wrong = await ask(shop, "orders", "shop.orders", "--spark", "mars")
    assert (wrong.exit_code, "is not a Spark master" in wrong.stderr) == (2, True)


async def test_follow_wakes_up_and_retries(shop: Shop) -> None:
    errors: list[Exception] = [Unavailable("not now")]
    retried: list[str] = []

    def at(name: str) -> None:
        if name == "written" and errors:
            raise errors.pop()

    sink = shop.sink(at)
    await sink.begin()
    clock = SystemLoopClock()
    runner = SinkRunner(
        sink, "orders", clock, report=lambda: None, on_retry=lambda error, _: retried.append(str(error))
    )  # fmt: skip
    async with open_read_context(shop.around, shop.settings) as reading:
        following = asyncio.create_task(runner.follow(reading, 0.0))
        for turn in range(3):
            await shop.produce((turn, orders(turn * 10, 10)))
            await eventually(lambda seen=(turn + 1) * 10: sink.totals.rows == seen or following.done(), "its rows")  # type: ignore[misc]
        runner.stop()
        await following
    assert retried == ["not now"]
    assert await shop.ids() == list(range(30))
