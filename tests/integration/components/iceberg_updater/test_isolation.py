"""One table that can't be committed to holds up no other, and is brought up to date once it can."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyiceberg.io.pyarrow import PyArrowFileIO

from astha.errors import Retry
from astha.events import Operation
from astha.subscribers import ComponentContext, LakeSettings, S3Settings
from components.iceberg_updater.settings import UpdaterSettings
from components.iceberg_updater.subscriber import IcebergUpdater
from components.lib.lake.updater_state import read_failing_tables
from registry.models import LakeTable
from tests.fixtures.daemons import RunDaemon
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.parquet_files import PLAIN
from tests.waiting import eventually


async def create_at(lake: Lake, location: str, name: str = "bad") -> LakeTable:
    table = await lake.store.create_table("shop", name, location, PLAIN.draft())
    metadata = await lake.store.get_table_metadata(table.id, 1)
    assert metadata is not None
    await lake.happened((Operation.INSERT, metadata))
    return table


async def deliver(lake: Lake) -> None:
    """As the lane does: again, until it is taken."""
    given, lake.pending = lake.pending, []
    for _ in range(10):
        try:
            return await lake.updater.on_transactions(given)
        except Retry:
            continue
    raise AssertionError("never taken")


def break_storage(lake: Lake, table: LakeTable) -> Path:
    """A regular file where the table's directory was: not even root can write below it."""
    place = lake.warehouse / table.name
    aside = place.with_name(f"{table.name}.aside")
    place.rename(aside)
    place.write_text("in the way")
    return aside


def mend_storage(lake: Lake, table: LakeTable) -> None:
    place = lake.warehouse / table.name
    place.unlink()
    place.with_name(f"{table.name}.aside").rename(place)


def reasons(lake: Lake) -> dict[str, str]:
    return {problem.subject: problem.reason for problem in lake.updater.problems()}


@pytest.mark.parametrize("location", ["file:///proc/nope/bad", "file:///dev/null/bad", "s3://nowhere/bad"])
@pytest.mark.parametrize("by_refresh", [False, True])
async def test_a_location_that_takes_no_files(lake: Lake, location: str, by_refresh: bool) -> None:
    """The S3 endpoint is a closed port."""
    await lake.updater.stop()
    s3 = S3Settings(
        endpoint="http://127.0.0.1:9", access_key=SecretStr("a"), secret_key=SecretStr("b"), allow_http=True
    )
    lake.settings = LakeSettings(s3=s3)
    await lake.restart()
    bad, good = await create_at(lake, location), await lake.create("good")
    await lake.insert(bad, 1)
    await lake.insert(good, 2)
    await (lake.refresh() if by_refresh else deliver(lake))
    assert lake.ids(good) == [2]
    assert reasons(lake).keys() == {"shop.bad"}
    assert "dropped meanwhile" not in reasons(lake)["shop.bad"]
    await lake.insert(good, 3)
    await deliver(lake)
    assert lake.ids(good) == [2, 3]
    troubled = await read_failing_tables(lake.store)
    assert list(troubled) == [bad.id], "it is in the registry before anything is acknowledged"
    assert await lake.updater.on_health()


async def test_storage_that_comes_back(lake: Lake) -> None:
    bad, good = await lake.create("bad"), await lake.create("good")
    old = await lake.insert(bad, 1)
    await lake.deliver()
    break_storage(lake, bad)
    await lake.insert(good, 2)
    await lake.remove(bad, old)
    await deliver(lake)
    assert lake.ids(good) == [2]
    assert "shop.bad" in reasons(lake)
    mend_storage(lake, bad)
    await lake.settled()
    assert lake.ids(bad) == []
    await lake.insert(bad, 3)
    await deliver(lake)
    assert lake.ids(bad) == [3]
    await lake.require_agreement(good, bad)


async def test_what_the_comparison_contained_is_not_committed_again(lake: Lake) -> None:
    """The comparison reads the registry, which is ahead of the lane; a restart brings everything again."""
    bad = await lake.create("bad")
    await lake.deliver()
    await lake.insert(bad, 1)
    await lake.insert(bad, 2)
    later = lake.pending.pop()
    break_storage(lake, bad)
    await deliver(lake)
    await eventually(lambda: next(iter(lake.updater.problems())).attempts > 1, "tried again")
    mend_storage(lake, bad)
    await lake.settled()
    assert lake.ids(bad) == [1, 2], "compared with a registry that the lane has not come to"
    await lake.updater.on_transactions([later])
    assert lake.ids(bad) == [1, 2]
    await lake.restart()
    await lake.updater.on_transactions([later])
    assert lake.ids(bad) == [1, 2], "also after a restart"
    await lake.require_agreement(bad)


async def test_a_restart_does_not_forget(lake: Lake) -> None:
    bad = await lake.create("bad")
    await lake.deliver()
    files = await lake.insert(bad, 1)
    break_storage(lake, bad)
    await deliver(lake)
    await lake.restart()
    assert "shop.bad" in reasons(lake)
    assert files
    mend_storage(lake, bad)
    await lake.settled()
    assert lake.ids(bad) == [1], "its events never come again"
    await lake.require_agreement(bad)


async def test_a_dropped_table_whose_storage_is_gone(lake: Lake) -> None:
    bad = await lake.create("bad")
    await lake.deliver()
    await lake.insert(bad, 1)
    break_storage(lake, bad)
    await deliver(lake)
    assert "shop.bad" in reasons(lake)
    await lake.drop(bad)
    await deliver(lake)
    other = await lake.create("other")
    await deliver(lake)
    assert lake.ids(other) == []
    mend_storage(lake, bad)
    await lake.settled()
    assert lake.tables.load(bad) is None


class HangingFileIO(PyArrowFileIO):
    """Storage that does not answer for one table until it is told to."""

    until = threading.Event()

    def new_input(self, location: str) -> Any:
        self._answer(location)
        return super().new_input(location)

    def new_output(self, location: str) -> Any:
        self._answer(location)
        return super().new_output(location)

    def _answer(self, location: str) -> None:
        if "/hanging/" in location:
            self.until.wait()


@pytest.fixture
def _hanging() -> Iterator[None]:
    HangingFileIO.until.clear()
    yield
    HangingFileIO.until.set()


@pytest.mark.usefixtures("_hanging")
async def test_storage_that_hangs(lake: Lake) -> None:
    """Its call is left behind; when it comes back it does nothing that was done by other means meanwhile."""
    hanging, good = await lake.create("hanging"), await lake.create("good")
    HangingFileIO.until.set()
    await lake.deliver()
    HangingFileIO.until.clear()
    await lake.updater.stop()
    context = lake.updater._context
    settings = UpdaterSettings(table_timeout_s=0.5, probe_timeout_s=0.5, retry_first_s=0.05, retry_max_s=0.2)
    lake.updater = IcebergUpdater(
        settings, ComponentContext(lake.store, context.clock, context.registry_url, lake.settings)
    )
    await lake.updater.start()
    thread = lake.updater._thread
    assert thread is not None
    thread.committer.tables.catalog.properties["py-io-impl"] = f"{__name__}.HangingFileIO"
    await lake.insert(hanging, 1)
    await lake.insert(good, 2)
    await deliver(lake)
    assert lake.ids(good) == [2]
    assert "not answered within" in reasons(lake)["shop.hanging"]
    await lake.insert(good, 3)
    await deliver(lake)
    assert lake.ids(good) == [2, 3]
    HangingFileIO.until.set()
    await lake.settled()
    assert lake.ids(hanging) == [1]
    await lake.require_agreement(hanging, good)


async def test_in_a_daemon_the_others_go_on(lake: Lake, run_daemon: RunDaemon) -> None:
    """From its very first refresh, over both databases."""
    await lake.updater.stop()
    bad, good = await create_at(lake, "file:///proc/nope/bad"), await lake.create("good")
    await lake.insert(good, 1)
    updater = lake.new_updater()
    running = await run_daemon(lake.url, {"iceberg_updater": updater})
    await running.live()
    await lake.insert(good, 2)
    await running.until(lambda: lake.tables.load(good) is not None and lake.ids(good) == [1, 2], "good is up to date")
    assert [problem.subject for problem in updater.problems()] == ["shop.bad"]
    await lake.drop(bad)
    await running.until(lambda: not list(updater.problems()), "with the table its problem is gone")
    await running.stop()


async def test_a_busy_table_is_compared_while_its_events_come(lake: Lake, run_daemon: RunDaemon) -> None:
    """Each file is in Iceberg once, whether the comparison contained it, it waited meanwhile, or it came after."""
    await lake.updater.stop()
    table = await lake.create("busy")
    updater = lake.new_updater()
    running = await run_daemon(lake.url, {"iceberg_updater": updater})
    await running.live()
    for number in range(60):
        await lake.insert(table, number)
        if number % 10 == 5:
            updater._owed.note(table.id, "shop.busy", "as if it had failed", now=True)
            updater._opened_comparisons().wake()
    await running.until(
        lambda: lake.tables.load(table) is not None and lake.ids(table) == list(range(60)), "all are there, once"
    )
    await running.until(lambda: not list(updater.problems()), "nothing is owed")
    await lake.require_agreement(table)
    await running.stop()
