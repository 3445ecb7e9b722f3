from __future__ import annotations

from components.snapshotter.policy import DAY_MS, Policy
from components.snapshotter.retention import judge_files, judge_snapshots
from tests.unit.components.snapshotter.rows import awaiting, snapshot

DAY = DAY_MS
ROWS = [snapshot(number, at=number * DAY) for number in range(1, 6)]  # v5 is the newest
NOW = 5 * DAY


def going(policy: Policy, *tags: str) -> list[str]:
    return [verdict.name for verdict in judge_snapshots(ROWS, policy, NOW, tags) if verdict.goes]


def test_without_a_word_all_stay() -> None:
    assert going(Policy()) == []


def test_by_count() -> None:
    assert going(Policy(keep=2)) == ["v3", "v2", "v1"]
    assert going(Policy(keep=9)) == []


def test_by_age() -> None:
    assert going(Policy(keep_for_ms=2 * DAY)) == ["v3", "v2", "v1"]


def test_either_keeps() -> None:
    assert going(Policy(keep=1, keep_for_ms=3 * DAY)) == ["v2", "v1"]
    assert going(Policy(keep=4, keep_for_ms=DAY)) == ["v1"]


def test_held_and_named() -> None:
    assert going(Policy(keep=1, hold=("v[13]",))) == ["v4", "v2"]
    assert going(Policy(), "v1", "v5") == ["v5", "v1"]
    assert going(Policy(keep=1, hold=("v1",)), "v1") == ["v1"], "a name is a name"


def test_only_created_ones_count() -> None:
    rows = [*ROWS, snapshot(6, "requested"), snapshot(7, "failed"), snapshot(8, "expired")]
    assert len(judge_snapshots(rows, Policy(keep=1), NOW)) == len(ROWS)


def test_each_verdict_says_why() -> None:
    said = {verdict.name: verdict.why for verdict in judge_snapshots(ROWS, Policy(keep=2, keep_for_ms=DAY), NOW)}
    assert said["v5"] == "the newest of the 2 to keep"
    assert said["v4"] == "number 2 of the 2 to keep"
    assert said["v1"] == "number 5, where 2 are kept; 4 d old, kept for 1 d"


def test_files() -> None:
    files = [awaiting(1, removed_at=NOW - DAY + 1), awaiting(2), awaiting(3), awaiting(4, operation="rollback")]
    verdicts = judge_files(files, {"s3://lake/2": 77}, DAY, NOW)
    assert [(verdict.goes, verdict.why) for verdict in verdicts] == [
        (False, "removed 23 h ago, grace is 1 d"),
        (False, "Iceberg snapshot 77 needs it"),
        (True, "removed 5 d ago (swap), and no snapshot needs it"),
        (True, "removed 5 d ago (swap), and no snapshot needs it"),
    ]


def test_files_while_iceberg_may_have_yet_to_follow() -> None:
    files = [awaiting(1), awaiting(2, created_at=50), awaiting(3, operation="rollback")]
    assert [verdict.goes for verdict in judge_files(files, {}, DAY, NOW, behind="late")] == [False] * 3
    assert [verdict.goes for verdict in judge_files(files, {}, DAY, NOW, uncertain_since=50)] == [True, False, False]
