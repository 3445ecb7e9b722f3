"""`astha topics to-table` without Spark: what it refuses before it starts one, and how it follows."""

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
from components.commands.topic_to_table.runner import Runner
from components.lib.streams.read_context import open_read_context
from registry.errors import Unavailable
from tests.integration.components.commands.topic_to_table.harness import HereRounds, Shop, open_shop, order, orders
from tests.waiting import eventually


@pytest.fixture
async def shop(url: str, warehouse: Path) -> AsyncIterator[Shop]:
    async with open_shop(url, warehouse) as opened:
        yield opened


class HereHost(HereRounds):
    """Instead of a session."""

    def __init__(self, _chosen: object, settings: Any) -> None:
        super().__init__(settings)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


@contextmanager
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(session, "SparkHost", HereHost)
        yield


async def ask(shop: Shop, *arguments: str) -> Result:
    given = ["topics", "to-table", *arguments, "--registry", shop.url, "--set", f"lake.warehouse={shop.warehouse}"]
    return await asyncio.to_thread(CliRunner().invoke, main, given)


async def test_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler", lambda *_: None)
    await shop.produce((0, orders(0, 30)), (1, [order(30), b"{"]))
    with here(monkeypatch):
        refused = await ask(shop, "orders", "shop.orders")
        assert refused.exit_code == 1
        assert "orders/1, offset 1: not a JSON object" in refused.stderr
        assert "--bad skip" in refused.stderr
        done = await ask(shop, "orders", "shop.orders", "--bad", "skip", "--json")
        assert done.exit_code == 0, done.output
        told = json.loads(done.stdout)
        assert (told["rows"], told["skipped"], told["lag"], told["group"]) == (31, 1, 0, "to-table:shop.orders")
        again = await ask(shop, "orders", "shop.orders")
        assert again.stdout.startswith("shop.orders: 0 rows in 0 files; lag 0")
    assert await shop.ids() == list(range(31))


async def test_what_is_not_there_is_said_before_spark_is_started(shop: Shop) -> None:
    for arguments, words in (
        (("nothing", "shop.orders"), "nothing"),
        (("orders", "shop.nothing"), "there is no table shop.nothing"),
        (("orders", "shop.orders", "--values", "record"), "has none of the columns"),
    ):
        result = await ask(shop, *arguments)
        assert result.exit_code == 1
        assert words in result.stderr
    wrong = await ask(shop, "orders", "shop.orders", "--spark", "mars")
    assert (wrong.exit_code, "is no master of Spark" in wrong.stderr) == (2, True)


async def test_followers_are_woken_and_go_on_after_trouble(shop: Shop) -> None:
    troubles: list[Exception] = [Unavailable("not now")]
    told: list[str] = []

    def at(name: str) -> None:
        if name == "written" and troubles:
            raise troubles.pop()

    job = shop.job(at)
    await job.begin()
    clock = SystemLoopClock()
    runner = Runner(
        job, "orders", clock, report=lambda: None, trouble=lambda error, _: told.append(str(error))
    )  # fmt: skip
    async with open_read_context(shop.around, shop.settings) as reading:
        following = asyncio.create_task(runner.follow(reading, 0.0))
        for turn in range(3):
            await shop.produce((turn, orders(turn * 10, 10)))
            await eventually(lambda seen=(turn + 1) * 10: job.tally.rows == seen or following.done(), "its rows")  # type: ignore[misc]
        runner.stop()
        await following
    assert told == ["not now"]
    assert await shop.ids() == list(range(30))
