from __future__ import annotations

import pytest

from components.snapshotter.policy import DAY_MS, PolicyProblem, SnapshotPolicy, read_policy
from components.snapshotter.settings import SnapshotterSettings


def test_by_default_no_snapshot_is_taken_and_none_expires() -> None:
    policy = read_policy({"owner": "sales"})
    assert policy == SnapshotPolicy()
    assert not policy.automatic
    assert not policy.expires
    assert policy.grace_ms == DAY_MS


def test_properties_override_defaults() -> None:
    defaults = read_policy({"snapshot.every": "1d", "snapshot.keep": 7})
    policy = read_policy(
        {
            "snapshot.every": "90 m",
            "snapshot.after-rows": "1000",
            "snapshot.after-bytes": "2GiB",
            "snapshot.after-files": 5,
            "snapshot.keep-for": "2w",
            "snapshot.hold": "q?-*, release",
            "snapshot.grace": "0s",
        },
        defaults,
    )
    assert policy == SnapshotPolicy(
        every_ms=90 * 60_000,
        after_rows=1_000,
        after_bytes=2 << 30,
        after_files=5,
        keep=7,
        keep_for_ms=14 * DAY_MS,
        hold=("q?-*", "release"),
        grace_ms=0,
    )
    assert policy.holds("q1-close")
    assert policy.holds("release")
    assert not policy.holds("released")
    assert not policy.holds(None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("every", "soon"), ("every", "0s"), ("every", "10"), ("every", "-1d"), ("after-rows", "0"),
        ("after-rows", "1e6"), ("after-bytes", "3 parsecs"), ("after-bytes", "0MB"), ("keep", "none"), ("keep", "0"),
        ("keep-for", "1y"), ("grace", ""), ("evry", "1d"),
    ],
)  # fmt: skip
def test_invalid_properties_are_named(name: str, value: str) -> None:
    if value == "":
        assert read_policy({f"snapshot.{name}": value}) == SnapshotPolicy()
        return
    with pytest.raises(PolicyProblem, match=f"snapshot.{name}"):
        read_policy({f"snapshot.{name}": value})


def test_settings_reject_invalid_defaults() -> None:
    assert SnapshotterSettings(defaults={"snapshot.keep": 3}).policy.keep == 3
    with pytest.raises(ValueError, match=r"snapshot\.keep = 'many'"):
        SnapshotterSettings(defaults={"snapshot.keep": "many"})
