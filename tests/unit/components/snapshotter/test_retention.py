from __future__ import annotations

from components.snapshotter.expiration import anything_due
from components.snapshotter.policy import DAY_MS, SnapshotPolicy
from components.snapshotter.retention import decide_files, decide_snapshots
from tests.unit.components.snapshotter.rows import awaiting, snapshot

DAY = DAY_MS
ROWS = [snapshot(number, at=number * DAY) for number in range(1, 6)]  # v5 is the newest
NOW = 5 * DAY


def removed(policy: SnapshotPolicy, *tags: str) -> list[str]:
    return [decision.name for decision in decide_snapshots(ROWS, policy, NOW, tags) if decision.remove]


def test_without_a_policy_all_are_kept() -> None:
    assert removed(SnapshotPolicy()) == []


def test_by_count() -> None:
    assert removed(SnapshotPolicy(keep=2)) == ["v3", "v2", "v1"]
    assert removed(SnapshotPolicy(keep=9)) == []


def test_by_age() -> None:
    assert removed(SnapshotPolicy(keep_for_ms=2 * DAY)) == ["v3", "v2", "v1"]


def test_either_rule_keeps() -> None:
    assert removed(SnapshotPolicy(keep=1, keep_for_ms=3 * DAY)) == ["v2", "v1"]
    assert removed(SnapshotPolicy(keep=4, keep_for_ms=DAY)) == ["v1"]


def test_held_and_named() -> None:
    assert removed(SnapshotPolicy(keep=1, hold=("v[13]",))) == ["v4", "v2"]
    assert removed(SnapshotPolicy(), "v1", "v5") == ["v5", "v1"]
    assert removed(SnapshotPolicy(keep=1, hold=("v1",)), "v1") == ["v1"], "an explicit tag wins"


def test_only_created_snapshots_count() -> None:
    rows = [*ROWS, snapshot(6, "requested"), snapshot(7, "failed"), snapshot(8, "expired")]
    assert len(decide_snapshots(rows, SnapshotPolicy(keep=1), NOW)) == len(ROWS)


def test_whether_anything_is_due() -> None:
    assert anything_due(ROWS, SnapshotPolicy(keep=4), NOW)
    assert not anything_due(ROWS, SnapshotPolicy(keep=5), NOW)
    assert not anything_due(ROWS, SnapshotPolicy(), NOW)
    grace = SnapshotPolicy(grace_ms=DAY)
    assert anything_due([snapshot(6, "expired", at=4 * DAY)], grace, NOW)
    assert not anything_due([snapshot(6, "expired", at=4 * DAY + 1)], grace, NOW), "readers may still use it"
    assert not anything_due([snapshot(6, "expired", manifest_list=None)], grace, NOW), "it is released"


def test_each_decision_has_a_reason() -> None:
    reasons = {
        decision.name: decision.reason
        for decision in decide_snapshots(ROWS, SnapshotPolicy(keep=2, keep_for_ms=DAY), NOW)
    }
    assert reasons["v5"] == "the newest of the 2 to keep"
    assert reasons["v4"] == "number 2 of the 2 to keep"
    assert reasons["v1"] == "number 5, where 2 are kept; 4 d old, kept for 1 d"


def test_files() -> None:
    files = [awaiting(1, removed_at=NOW - DAY + 1), awaiting(2), awaiting(3), awaiting(4, operation="rollback")]
    decisions = decide_files(files, {"s3://lake/2": 77}, DAY, NOW)
    assert [(decision.remove, decision.reason) for decision in decisions] == [
        (False, "removed 23 h ago, grace is 1 d"),
        (False, "Iceberg snapshot 77 needs it"),
        (True, "removed 5 d ago (swap), and no snapshot needs it"),
        (True, "removed 5 d ago (swap), and no snapshot needs it"),
    ]


def test_files_while_iceberg_may_be_behind() -> None:
    files = [awaiting(1), awaiting(2, created_at=50), awaiting(3, operation="rollback")]
    assert [decision.remove for decision in decide_files(files, {}, DAY, NOW, behind="late")] == [False] * 3
    assert [decision.remove for decision in decide_files(files, {}, DAY, NOW, uncertain_since=50)] == [
        True,
        False,
        False,
    ]
