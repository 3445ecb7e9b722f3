"""Groups of daemons on one registry: each has its own leader, epoch, ledger rows and stream."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from astha.testing import Fault, FaultySubscriber, RecordingSubscriber
from registry.contract import MetadataStore
from registry.json_text import JsonText, parse_json_as
from registry.models import LedgerEntry, RunningDaemon
from tests.fixtures.daemons import RunDaemon
from tests.fixtures.stores import OpenStore
from tests.waiting import eventually

GROUPS = "consumer_groups"


@pytest.fixture
async def writing(url: str, opened: OpenStore) -> MetadataStore:
    return await opened(url)


async def _entry(store: MetadataStore, group: str) -> LedgerEntry:
    (entry,) = await store.read_ledger(group)
    return entry


async def _daemons(store: MetadataStore) -> dict[str, RunningDaemon]:
    return {row.holder: row for row in await store.list_daemons()}


async def test_two_groups_with_the_same_component_do_not_disturb_each_other(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    ours, theirs = RecordingSubscriber(GROUPS), FaultySubscriber(GROUPS)
    one = await run_daemon(url, {"audit": ours}, holder="one")
    two = await run_daemon(url, {"audit": theirs}, holder="two", group="reports")
    await one.live()
    await two.live()
    await writing.ensure_consumer_group("first")
    await one.agree(writing)
    await two.agree(writing)
    theirs.healthy = False
    theirs.misbehave(Fault.REJECT)
    await writing.ensure_consumer_group("second")
    await one.agree(writing)

    async def owed() -> bool:
        return (await _entry(writing, "reports")).refresh_owed

    await two.until(owed, "the other group's refresh owed")
    entry = await _entry(writing, "astha")
    assert (entry.state, entry.refresh_owed) == ("live", False)
    theirs.healthy = True
    theirs.behave()
    await two.agree(writing)
    refreshes = theirs.refreshes
    await one.stop()
    await writing.ensure_consumer_group("third")
    await two.agree(writing)
    assert theirs.refreshes == refreshes, "the end of one group is no gap for the other"
    leases = [await writing.get_daemon_lease(group) for group in ("astha", "reports")]
    assert [(lease.holder, lease.epoch) for lease in leases if lease is not None] == [("one", 1), ("two", 1)]


async def test_a_group_continues_where_it_was(postgres_url: str, opened: OpenStore, run_daemon: RunDaemon) -> None:
    """The first group's ledger is further; the second one resumes from its own position, with its own slot."""
    url, writing = postgres_url, await opened(postgres_url)
    one = await run_daemon(url, {"audit": RecordingSubscriber(GROUPS)})
    first = RecordingSubscriber(GROUPS)
    two = await run_daemon(url, {"audit": first}, holder="two", group="reports")
    await one.live()
    await two.live()
    await writing.ensure_consumer_group("before")
    await two.agree(writing)
    await two.stop()
    for number in range(5):
        await writing.ensure_consumer_group(f"between {number}")
    await one.agree(writing)
    second = RecordingSubscriber(GROUPS)
    second.rows = {table: dict(rows) for table, rows in first.rows.items()}
    two = await run_daemon(url, {"audit": second}, holder="three", group="reports")
    await two.agree(writing)
    assert second.refreshes == 0
    assert len(second.events) == 5


async def test_a_standby_takes_over_within_its_group_only(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    one = await run_daemon(url, {"audit": RecordingSubscriber(GROUPS)}, holder="one")
    first, second = RecordingSubscriber(GROUPS), RecordingSubscriber(GROUPS)
    two = await run_daemon(url, {"audit": first}, holder="two", group="reports", lease_s=2.0)
    await one.live()
    await two.live()
    three = await run_daemon(url, {"audit": second}, holder="three", group="reports", lease_s=2.0)

    async def reported(*wanted: tuple[str, str, str]) -> bool:
        return {*wanted} <= {(holder, row.group, row.role) for holder, row in (await _daemons(writing)).items()}

    leads = [("one", "astha", "leader"), ("two", "reports", "leader"), ("three", "reports", "standby")]
    await three.until(lambda: reported(*leads), "one leader per group")
    await two.kill()
    await writing.ensure_consumer_group("after")
    await three.agree(writing)
    await three.until(lambda: reported(("three", "reports", "leader")), "the new leader")
    assert "two" in await _daemons(writing), "a row outlives kill -9"
    lease = await writing.get_daemon_lease("reports")
    assert lease is not None
    assert lease.holder == "three"
    assert lease.epoch > 1, "a new term: on a busy machine a lease of seconds can end once more"
    assert one.daemon.leadership.lease.epoch == 1
    await three.stop()
    assert "three" not in await _daemons(writing), "a daemon that stops removes its row"


async def test_a_daemons_row(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    dead = RunningDaemon("dead", "astha", "h", 1, "leader", "sqlite", JsonText("[]"), "0", 1, 1)
    await writing.record_daemon(dead)
    subscribers = {"b": RecordingSubscriber(GROUPS), "a": RecordingSubscriber("topics")}
    running = await run_daemon(url, subscribers, group="reports")

    async def reported() -> bool:
        return set(await _daemons(writing)) == {"one"}

    await running.until(reported, "the daemon's row, without the one that was last seen years ago")
    row = (await _daemons(writing))["one"]
    assert (row.group, parse_json_as(row.components, list[str])) == ("reports", ["b", "a"])


async def test_a_row_that_can_not_be_written_disturbs_nothing(
    url: str, writing: MetadataStore, run_daemon: RunDaemon
) -> None:
    async with writing._transaction() as connection:  # type: ignore[attr-defined]
        await connection.exec_driver_sql("ALTER TABLE daemons RENAME TO away")
    with capture_logs() as logs:
        running = await run_daemon(url, {"audit": RecordingSubscriber(GROUPS)})
        await running.live()
        await writing.ensure_consumer_group("g")
        await running.agree(writing)
        await running.stop()
    assert any("daemon can't report itself" in line["event"] for line in logs)


async def test_many_daemons_start_at_once(url: str, writing: MetadataStore, run_daemon: RunDaemon) -> None:
    running = [
        await run_daemon(url, {"audit": RecordingSubscriber(GROUPS)}, holder=f"{group}{number}", group=group)
        for group in ("astha", "reports")
        for number in range(3)
    ]

    async def reported() -> bool:
        rows = await writing.list_daemons()
        leaders = [row.group for row in rows if row.role == "leader"]
        return len(rows) == len(running) and leaders == ["astha", "reports"]

    await eventually(reported, "six daemons, one leader per group", 60)
    await asyncio.gather(*(each.stop() for each in running))
    assert await writing.list_daemons() == []
