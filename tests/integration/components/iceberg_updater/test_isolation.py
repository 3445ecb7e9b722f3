"""A table that cannot be committed to does not delay others, and is refreshed once it can."""

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
from registry.models import LakeTable, TableMetadata
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
    """Redelivers until the updater accepts, as the lane does."""
    given, lake.pending = lake.pending, []
    for _ in range(10):
        try:
            return await lake.updater.on_transactions(given)
        except Retry:
            continue
    raise AssertionError("never accepted")


def break_storage(lake: Lake, table: LakeTable) -> Path:
    """Replaces the table's directory with a regular file: not even root can write below it."""
    place = lake.warehouse / table.name
    aside = place.with_name(f"{table.name}.aside")
    place.rename(aside)
    place.write_text("in the way")
    return aside


def repair_storage(lake: Lake, table: LakeTable) -> None:
    place = lake.warehouse / table.name
    place.unlink()
    place.with_name(f"{table.name}.aside").rename(place)


def reasons(lake: Lake) -> dict[str, str]:
    return {problem.subject: problem.reason for problem in lake.updater.problems()}


@pytest.mark.parametrize("location", ["file:///proc/nope/bad", "file:///dev/null/bad", "s3://nowhere/bad"])
@pytest.mark.parametrize("by_refresh", [False, True])
async def test_an_unwritable_location(lake: Lake, location: str, by_refresh: bool) -> None:
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
    assert list(troubled) == [bad.id], "recorded in the registry before the events are acknowledged"
    assert await lake.updater.on_health()


async def test_storage_that_recovers(lake: Lake) -> None:
    bad, good = await lake.create("bad"), await lake.create("good")
    old = await lake.insert(bad, 1)
    await lake.deliver()
    break_storage(lake, bad)
    await lake.insert(good, 2)
    await lake.remove(bad, old)
    await deliver(lake)
    assert lake.ids(good) == [2]
    assert "shop.bad" in reasons(lake)
    repair_storage(lake, bad)
    await lake.settled()
    assert lake.ids(bad) == []
    await lake.insert(bad, 3)
    await deliver(lake)
    assert lake.ids(bad) == [3]
    await lake.require_agreement(good, bad)


async def test_events_that_the_refresh_contained_are_not_committed_again(lake: Lake) -> None:
    """The refresh reads the registry, which is ahead of the lane; a restart redelivers everything."""
    bad = await lake.create("bad")
    await lake.deliver()
    await lake.insert(bad, 1)
    await lake.insert(bad, 2)
    later = lake.pending.pop()
    break_storage(lake, bad)
    await deliver(lake)
    await eventually(lambda: next(iter(lake.updater.problems())).attempts > 1, "retried")
    repair_storage(lake, bad)
    await lake.settled()
    assert lake.ids(bad) == [1, 2], "the refresh read a registry that is ahead of the lane"
    await lake.updater.on_transactions([later])
    assert lake.ids(bad) == [1, 2]
    await lake.restart()
    await lake.updater.on_transactions([later])
    assert lake.ids(bad) == [1, 2], "also after a restart"
    await lake.require_agreement(bad)


async def test_a_pending_refresh_survives_a_restart(lake: Lake) -> None:
    bad = await lake.create("bad")
    await lake.deliver()
    files = await lake.insert(bad, 1)
    break_storage(lake, bad)
    await deliver(lake)
    await lake.restart()
    assert "shop.bad" in reasons(lake)
    assert files
    repair_storage(lake, bad)
    await lake.settled()
    assert lake.ids(bad) == [1], "its events are not redelivered"
    await lake.require_agreement(bad)


async def test_dropping_a_table_with_unavailable_storage(lake: Lake) -> None:
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
    repair_storage(lake, bad)
    await lake.settled()
    assert lake.tables.load(bad) is None


async def test_dropping_a_table_whose_refresh_has_begun(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refresh finds the table, and then none of its rows."""
    bad = await lake.create("bad")
    await lake.deliver()
    await lake.insert(bad, 1)
    break_storage(lake, bad)
    await deliver(lake)
    repair_storage(lake, bad)
    found = lake.store.list_table_metadata
    dropped: list[int] = []

    async def drop_first(table_id: int) -> list[TableMetadata]:
        if not dropped:
            dropped.append(table_id)
            await lake.drop(bad)
        return await found(table_id)

    async def has_begun() -> bool:
        return bool(dropped)

    monkeypatch.setattr(lake.store, "list_table_metadata", drop_first)
    await eventually(has_begun, "the refresh has read the table")
    await deliver(lake)
    await lake.settled()
    assert lake.tables.load(bad) is None


class HangingFileIO(PyArrowFileIO):
    """Storage that does not answer for one table until `until` is set."""

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
    """Its call is abandoned, and commits nothing if it returns later."""
    hanging, good = await lake.create("hanging"), await lake.create("good")
    HangingFileIO.until.set()
    await lake.deliver()
    HangingFileIO.until.clear()
    await lake.updater.stop()
    context = lake.updater._context
    settings = UpdaterSettings(table_timeout_s=0.5, probe_timeout_s=0.5, retry_initial_s=0.05, retry_max_s=0.2)
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


async def test_in_a_daemon_other_tables_go_on(lake: Lake, run_daemon: RunDaemon) -> None:
    """Starting with the first refresh."""
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
    await running.until(lambda: not list(updater.problems()), "the problem disappears with the table")
    await running.stop()


async def test_a_table_is_refreshed_while_its_events_arrive(lake: Lake, run_daemon: RunDaemon) -> None:
    """Each file is in Iceberg once, whether the refresh contained it or it arrived during or after it."""
    await lake.updater.stop()
    table = await lake.create("busy")
    updater = lake.new_updater()
    running = await run_daemon(lake.url, {"iceberg_updater": updater})
    await running.live()
    for number in range(60):
        await lake.insert(table, number)
        if number % 10 == 5:
            updater._pending.add(table.id, "shop.busy", "injected failure", now=True)
            updater._opened_refresher().wake()
    await running.until(
        lambda: lake.tables.load(table) is not None and lake.ids(table) == list(range(60)), "every row is there once"
    )
    await running.until(lambda: not list(updater.problems()), "no refresh is pending")
    await lake.require_agreement(table)
    await running.stop()
