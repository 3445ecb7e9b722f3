from __future__ import annotations

from typing import Any, cast

import pytest

from components.commands.verify import diagnosis
from components.commands.verify.iceberg_state import IcebergState
from components.commands.verify.report import Cause
from components.commands.verify.updater_lag import UpdaterProgress
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import Stamp
from tests.unit.components.commands.verify.test_updater_lag import ABSENT, state


def committed(**rest: Any) -> IcebergState:
    digest = Digest()
    digest.add(LiveFile("s3://b/a", 1, 1))
    return IcebergState(cast("Any", None), rest.pop("stamp", Stamp(digest)), digest, **rest)


def cause(updater: UpdaterProgress, *, passed: bool = False, found: IcebergState | None = None) -> Cause:
    return diagnosis.of_files("shop.orders", 3, found or committed(), updater, passed, 5.0)


@pytest.mark.parametrize(
    ("updater", "passed", "why", "repair"),
    [
        (ABSENT, False, "the ledger has no iceberg_updater", "subscriptions.yaml"),
        (state(), False, "behind by 3 after 5 s", "--timeout"),
        (state(daemon=False), False, "behind by 3: iceberg_updater was live, and no daemon runs", "`astha run`"),
        (state(lane="paused"), False, "behind by 3", "`astha resume iceberg_updater`"),
        (state(lane="paused", daemon=False), False, "behind", "`astha run`, then `astha resume iceberg_updater`"),
        (state(None, lane="broken", owed=True, reason="no room"), False, "broken, owes a refresh (no room)", "status"),
        (state(), True, "has passed this, but Iceberg does not have it", "`astha refresh iceberg_updater`"),
        (state(daemon=False), True, "has passed this", "`astha run`, then `astha refresh iceberg_updater`"),
    ],
)
def test_causes_by_updater_state(updater: UpdaterProgress, passed: bool, why: str, repair: str) -> None:
    found = cause(updater, passed=passed)
    assert why in found.reason
    assert repair in (found.repair or "")


def test_an_external_commit_is_the_first_cause() -> None:
    found = cause(
        state(), passed=True, found=committed(external_commits=["snapshot 1"], stopped="another engine has committed")
    )
    assert "another engine" in found.reason
    assert "astha iceberg adopt shop.orders" in (found.repair or "")
    assert "astha iceberg revert shop.orders" in (found.repair or "")


def test_a_stopped_table_shows_its_reason() -> None:
    found = cause(state(), passed=True, found=committed(stopped="column id can't be dropped"))
    assert "column id can't be dropped" in found.reason
    assert "astha refresh iceberg_updater" in (found.repair or "")


def test_a_wrong_stamp_needs_a_revert() -> None:
    found = cause(state(), passed=True, found=committed(stamp=Stamp(Digest())))
    assert found.repair == "`astha iceberg revert shop.orders`"
