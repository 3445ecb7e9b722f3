"""Readiness of components: those that have not started, and those that make no progress."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from astha.daemon import Daemon
from astha.server.health import readiness
from astha.server.status import component_report
from astha.subscribers import Work
from tests.unit.astha.server.daemons import Stage, topics


def reasons(daemon: Daemon) -> list[str]:
    found = readiness(daemon, 20.0)
    assert found.ready is not bool(found.reasons)
    return [reason for reason in found.reasons if not reason.startswith("leadership is uncertain")]  # it is not renewed


@pytest.fixture
async def stage() -> Stage:
    stage = Stage("audit")
    await stage.lead()
    return stage


async def test_a_component_that_resumes_is_not_ready_before_its_start_has_ended(stage: Stage) -> None:
    (lane,) = stage.daemon.lanes
    lane.serving = False
    assert reasons(stage.daemon) == ["component audit is bootstrapping"]
    lane.start_began = stage.clock.monotonic()
    await stage.clock.advance(42)
    assert reasons(stage.daemon) == ["component audit is bootstrapping: start has been running for 42 s"]
    assert component_report(stage.daemon, lane, stage.clock).state == "bootstrapping"
    lane.serving = True
    assert reasons(stage.daemon) == []


async def test_a_delivery_that_never_ends_is_noticed(stage: Stage) -> None:
    stage.pass_by(topics(900, "a"))
    assert reasons(stage.daemon) == []
    await stage.clock.advance(21)
    assert reasons(stage.daemon) == [
        "component audit makes no progress: the same delivery has been tried for 21 s",
    ]


async def test_stuck_background_work_is_noticed(stage: Stage) -> None:
    subscriber = stage.daemon.components[0].subscriber
    found = [Work("merge of db.a", 50.0, 60.0), Work("merge of db.b", 61.0, 60.0)]
    subscriber.work = lambda: found  # type: ignore[attr-defined]
    assert reasons(stage.daemon) == [
        "component audit makes no progress: merge of db.b has been idle for 61 s, its limit is 60 s"
    ]
    found.pop()
    assert reasons(stage.daemon) == []


async def test_a_component_that_can_not_report_its_work_is_logged(stage: Stage) -> None:
    def broken() -> list[Work]:
        raise KeyError("a bug")

    stage.daemon.components[0].subscriber.work = broken  # type: ignore[attr-defined]
    with capture_logs() as lines:
        assert reasons(stage.daemon) == []
    assert [(line["component"], line["call"]) for line in lines] == [("audit", "work")]
