from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from astha.events import Operation
from components.snapshotter.policy import SnapshotPolicy
from components.snapshotter.table_state import TableState, TableStates
from tests.doubles.clock import ManualClock
from tests.unit.components.snapshotter.rows import event, metadata, snapshot, table_file

RETRY_MS = 60_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def state_of(states: TableStates) -> TableState:
    found = states.get(1)
    assert found is not None
    return found


def opened(**properties: str) -> TableStates:
    states = TableStates(SnapshotPolicy())
    states.apply(event(metadata(1, **properties)))
    return states


def trigger(states: TableStates, clock: ManualClock) -> str | None:
    due = state_of(states).due(clock.now_ms(), RETRY_MS)
    return None if due is None else due[0]


@pytest.mark.parametrize(("limit", "value"), [("after_rows", "30"), ("after_bytes", "300"), ("after_files", "3")])
def test_by_size(clock: ManualClock, limit: str, value: str) -> None:
    states = opened(**{limit: value})
    for number in range(2):
        states.apply(event(table_file(number)))
        assert trigger(states, clock) is None
    states.apply(event(table_file(7, operation="compaction")))
    states.apply(event(table_file(8), Operation.DELETE))
    assert trigger(states, clock) is None, "compactions and removals do not count"
    states.apply(event(table_file(9)))
    assert trigger(states, clock) == "size"


def test_by_time_only_after_a_change(clock: ManualClock) -> None:
    states = opened(every="1h")
    clock.advance(timedelta(days=1))
    assert trigger(states, clock) is None, "no change yet"
    states.apply(event(table_file()))
    assert trigger(states, clock) == "time"
    states.apply(event(snapshot(1, "requested", clock.now_ms())))
    states.apply(event(snapshot(1, "created", clock.now_ms()), Operation.UPDATE))
    clock.advance(timedelta(hours=2))
    assert trigger(states, clock) is None, "no change since"
    states.apply(event(table_file(), Operation.DELETE))
    assert trigger(states, clock) == "time", "a removal is a change"
    states.apply(event(snapshot(2, "requested", clock.now_ms())))
    states.apply(event(snapshot(2, "created", clock.now_ms()), Operation.UPDATE))
    states.apply(event(table_file(2)))
    clock.advance(timedelta(minutes=59))
    assert trigger(states, clock) is None
    clock.advance(timedelta(minutes=1))
    assert trigger(states, clock) == "time"


def test_one_open_request_per_table(clock: ManualClock) -> None:
    states = opened(after_files="1")
    states.apply(event(table_file(1)))
    state_of(states).requesting = True
    assert trigger(states, clock) is None
    states.apply(event(snapshot(1, "requested")))
    states.apply(event(table_file(2)))
    assert trigger(states, clock) is None
    states.apply(event(snapshot(1, "created"), Operation.UPDATE))
    assert trigger(states, clock) == "size", "growth after the request counts for the next one"


def test_a_failed_request_restores_the_growth_and_delays_the_next(clock: ManualClock) -> None:
    states = opened(after_rows="10")
    states.apply(event(table_file(1)))
    states.apply(event(snapshot(1, "requested", clock.now_ms())))
    states.apply(event(snapshot(1, "failed", clock.now_ms()), Operation.UPDATE))
    assert trigger(states, clock) is None
    clock.advance(RETRY_MS)
    assert trigger(states, clock) == "size"


def test_the_newest_version_sets_the_policy_and_an_invalid_one_the_defaults(clock: ManualClock) -> None:
    states = opened()
    states.apply(event(table_file()))
    assert trigger(states, clock) is None
    states.apply(event(metadata(2, after_files="1")))
    assert trigger(states, clock) == "size"
    states.apply(event(metadata(1), Operation.UPDATE))
    assert trigger(states, clock) == "size", "an older version is ignored"
    states.apply(event(metadata(2, after_files="few"), Operation.UPDATE))
    assert trigger(states, clock) is None
    states.apply(event(metadata(2), Operation.DELETE))
    assert states.get(1) is None
    states.apply(event(table_file()))
    states.apply(event(snapshot(1)))


def test_expired_rows_are_kept_until_released() -> None:
    states = opened()
    row = snapshot(1, "created")
    states.apply(event(row))
    states.apply(event(msgspec.structs.replace(row, status="expired"), Operation.UPDATE))
    assert list(state_of(states).rows) == [1]
    states.apply(event(msgspec.structs.replace(row, status="expired", manifest_list=None), Operation.UPDATE))
    assert state_of(states).rows == {}
