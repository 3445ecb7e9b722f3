from __future__ import annotations

from typing import cast

import pytest

from astha.testing import ManualClock
from components.commands.verify.updater_lag import UpdaterProgress, read_updater
from registry.contract import MetadataStore
from registry.json_text import to_json_text
from registry.models import DaemonLease, LedgerEntry
from registry.position import Position


def state(
    position: int | None = 10, *, lane: str = "live", owed: bool = False, reason: str | None = None, daemon: bool = True
) -> UpdaterProgress:
    entry = LedgerEntry("iceberg_updater", position, None, to_json_text([]), lane, owed, reason, 0, "astha")
    return UpdaterProgress(entry, daemon, Position(12))


ABSENT = UpdaterProgress(None, True, Position(12))


def test_the_ledgers_position_decides() -> None:
    assert state(10).has_passed(Position(10))
    assert not state(9).has_passed(Position(10))


@pytest.mark.parametrize("one", [state(None), state(10, owed=True), ABSENT])
def test_an_updater_that_owes_a_refresh_has_passed_nothing(one: UpdaterProgress) -> None:
    assert not one.has_passed(Position(0))


def test_paused_or_missing_updaters_are_not_waited_for() -> None:
    assert state().is_worth_waiting_for
    assert state(None, lane="broken", owed=True).is_worth_waiting_for
    assert not state(daemon=False).is_worth_waiting_for
    assert not state(lane="paused").is_worth_waiting_for
    assert not ABSENT.is_worth_waiting_for


def test_text_has_state_reason_and_position() -> None:
    assert str(state(None, lane="broken", owed=True, reason="no room")) == (
        "iceberg_updater is broken, owes a refresh (no room)"
    )
    assert str(state(10, daemon=False)) == ("iceberg_updater was live, and no daemon runs now, at position 10 of 12")
    assert str(ABSENT) == "the ledger has no iceberg_updater"


class TwoGroups:
    """The updater has moved from the group `astha`, whose daemon runs, to `lake`."""

    def __init__(self, clock: ManualClock, lake_expires_ms: int) -> None:
        self._leases = {"astha": clock.now_ms() + 1_000, "lake": clock.now_ms() + lake_expires_ms}

    async def read_ledger(self) -> list[LedgerEntry]:
        tables = to_json_text([])
        return [
            LedgerEntry("iceberg_updater", 40, None, tables, "live", False, None, 5, "astha"),
            LedgerEntry("compactor", 41, None, tables, "live", False, None, 9, "astha"),
            LedgerEntry("iceberg_updater", 12, None, tables, "live", False, None, 7, "lake"),
        ]

    async def get_daemon_lease(self, name: str) -> DaemonLease:
        return DaemonLease(name, "one", 1, 0, self._leases[name])

    async def position(self) -> Position:
        return Position(50)


@pytest.mark.parametrize(("expires_ms", "runs"), [(1_000, True), (-60_000, False)])
async def test_the_updater_is_found_in_the_group_that_runs_it_now(expires_ms: int, runs: bool) -> None:
    clock = ManualClock()
    found = await read_updater(cast("MetadataStore", TwoGroups(clock, expires_ms)), clock)
    assert found.entry is not None
    assert (found.entry.group, found.entry.position, found.daemon) == ("lake", 12, runs)
