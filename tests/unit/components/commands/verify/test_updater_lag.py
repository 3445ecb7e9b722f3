from __future__ import annotations

import pytest

from components.commands.verify.updater_lag import UpdaterProgress
from registry.json_text import to_json_text
from registry.models import LedgerEntry
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
