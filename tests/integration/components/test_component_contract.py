"""Our components load, say whether their state is durable, and read no registry rows in `start`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.lanes.lane import Lane
from astha.lanes.state import LaneState
from astha.routing.subscriptions import read_subscriptions, require_match
from astha.subscribers import (
    Component,
    ComponentContext,
    LakeSettings,
    MetadataStore,
    Position,
    ReportsProblems,
    Startable,
    Stoppable,
)
from astha.subscribers.contract import is_durable
from astha.subscribers.loader import load_component
from tests.fixtures.daemons import RunDaemon
from tests.fixtures.stores import OpenStore
from tests.samples import TABLE, file

ROOT = Path(__file__).parents[3]
SUBSCRIPTIONS = read_subscriptions(ROOT / "subscriptions.yaml")

DURABLE = {
    "iceberg_updater": True,
    "snapshotter": False,
    "metadata_orchestrator": False,
    "segment_store": False,
    "compactor": False,
}


IDENTITY = {"get_source_identity", "ensure_source_identity"}
"""Verbs that read no row of a published table: which registry this is, and notes that a component keeps there."""


class Spy:
    """A store that notes which verbs are called."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.verbs: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.verbs.append(name)
        return getattr(self._store, name)


def test_every_component_of_ours_is_listed_here() -> None:
    assert SUBSCRIPTIONS.keys() == DURABLE.keys()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", DURABLE)
async def test_start_reads_no_registry_rows(name: str, url: str, opened: OpenStore, tmp_path: Path) -> None:
    store = Spy(await opened(url))
    lake = LakeSettings(warehouse=str(tmp_path / "warehouse"))
    context = ComponentContext(cast("MetadataStore", store), SystemLoopClock(), SecretStr(url), lake)
    component = load_component(name, {}, context)
    require_match(name, SUBSCRIPTIONS[name], component.subscribed_tables)
    assert isinstance(component, Component)
    assert is_durable(component) is DURABLE[name]
    assert isinstance(component, Startable)
    assert isinstance(component, Stoppable)
    try:
        await component.start()
        assert set(store.verbs) <= IDENTITY, "rows come by on_refresh"
    finally:
        await component.stop()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("name", DURABLE)
async def test_a_component_is_started_again_when_leadership_is_won_again(
    name: str, url: str, opened: OpenStore, run_daemon: RunDaemon, tmp_path: Path
) -> None:
    """In the same process: the daemon stops its components when it loses the lease."""
    store = await opened(url)
    context = ComponentContext(store, SystemLoopClock(), SecretStr(url), LakeSettings(warehouse=str(tmp_path)))
    component = load_component(name, {}, context)
    for life in range(3):
        running = await run_daemon(url, {name: component})
        await running.live()
        await store.create_topic(f"topic-{life}", 1)
        table = await store.create_table("db", f"table{life}", f"file://{tmp_path}/table{life}", TABLE)
        if name == "compactor":  # others would read the file
            await store.add_files(table.id, [file(f"file{life}")])
        written, lane = await store.position(), running.lane(name)
        await running.until(partial(_reached, lane, written), f"the changes of life {life} delivered to {name}")
        assert lane.counts.delivered, "delivered, not refreshed"
        await running.stop()


def _reached(lane: Lane, position: Position) -> bool:
    return lane.state is LaneState.LIVE and lane.position >= position


async def test_the_orchestrator_finds_known_problems_again_after_a_restart(
    url: str, opened: OpenStore, run_daemon: RunDaemon, tmp_path: Path
) -> None:
    """It keeps them in memory, and nothing about the table changes afterwards."""
    store = await opened(url)
    context = ComponentContext(store, SystemLoopClock(), SecretStr(url), LakeSettings(warehouse=str(tmp_path)))
    (tmp_path / "bad").write_text("a file where the table's directory should be")
    for life in range(2):
        component = load_component("metadata_orchestrator", {}, context)
        assert isinstance(component, ReportsProblems)
        running = await run_daemon(url, {"metadata_orchestrator": component})
        await running.live()
        if life == 0:
            await store.create_table("db", "bad", f"file://{tmp_path}/bad", TABLE)
        await running.until(partial(_reports, component, "db.bad"), "the problem")
        await running.stop()  # the ledger has its position then


def _reports(component: ReportsProblems, subject: str) -> bool:
    return any(problem.subject == subject for problem in component.problems())
