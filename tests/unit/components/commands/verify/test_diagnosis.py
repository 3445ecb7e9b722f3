from __future__ import annotations

from typing import Any, cast

import pytest

from components.commands.verify import diagnosis
from components.commands.verify.iceberg_state import Committed
from components.commands.verify.report import Cause
from components.commands.verify.updater_lag import UpdaterState
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import Stamp
from tests.unit.components.commands.verify.test_updater_lag import ABSENT, state


def committed(**rest: Any) -> Committed:
    digest = Digest()
    digest.add(LiveFile("s3://b/a", 1, 1))
    return Committed(cast("Any", None), rest.pop("stamp", Stamp(digest)), digest, **rest)


def cause(updater: UpdaterState, *, passed: bool = False, found: Committed | None = None) -> Cause:
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
        (state(), True, "has passed this and has it not", "`astha refresh iceberg_updater`"),
        (state(daemon=False), True, "has passed this", "`astha run`, then `astha refresh iceberg_updater`"),
    ],
)
def test_the_updater_is_the_cause(updater: UpdaterState, passed: bool, why: str, repair: str) -> None:
    found = cause(updater, passed=passed)
    assert why in found.why
    assert repair in (found.repair or "")


def test_another_engine_comes_first() -> None:
    found = cause(state(), passed=True, found=committed(foreign=["snapshot 1"], stopped="somebody has committed"))
    assert "another engine" in found.why
    assert "astha iceberg adopt shop.orders" in (found.repair or "")
    assert "astha iceberg revert shop.orders" in (found.repair or "")


def test_a_stopped_table_says_why() -> None:
    found = cause(state(), passed=True, found=committed(stopped="column id can't be dropped"))
    assert "column id can't be dropped" in found.why
    assert "astha refresh iceberg_updater" in (found.repair or "")


def test_a_refresh_would_trust_a_wrong_stamp() -> None:
    found = cause(state(), passed=True, found=committed(stamp=Stamp(Digest())))
    assert found.repair == "`astha iceberg revert shop.orders`"
