from __future__ import annotations

from datetime import UTC, datetime

import pytest

from components.compactor.scheduling.policy import CompactionPolicy, PolicyProblem, read_policy
from components.compactor.scheduling.quiet_hours import QuietHours, read_quiet_hours

MIB = 1 << 20


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_properties_override_defaults() -> None:
    defaults = read_policy({"compaction.min-inputs": 8, "compaction.strategy": "copy"})
    policy = read_policy(
        {
            "owner": "sales",
            "compaction.enabled": "no",
            "compaction.target-size": "64MiB",
            "compaction.small-ratio": "0.5",
            "compaction.max-group-size": "1GiB",
            "compaction.min-age": "5m",
            "compaction.quiet-hours": "22:00-06:00",
            "compaction.copy-above": "1MiB",
        },
        defaults,
    )
    assert policy == CompactionPolicy(
        enabled=False, target_bytes=64 * MIB, small_ratio=0.5, min_inputs=8, max_group_bytes=1024 * MIB,
        min_age_ms=300_000, quiet_hours=QuietHours(((1320, 360),)), strategy="copy", copy_above_bytes=MIB,
    )  # fmt: skip
    assert policy.small_bytes == 32 * MIB
    assert read_policy({"snapshot.keep": 1}) == CompactionPolicy()


def test_a_target_above_the_group_size_raises_that() -> None:
    assert read_policy({"compaction.target-size": "2GiB"}).max_group_bytes == 2048 * MIB


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enabled", "maybe"), ("target-size", "0"), ("target-size", "big"), ("small-ratio", "0"),
        ("small-ratio", "1.1"),
        ("small-ratio", "nan"), ("small-ratio", "half"), ("min-inputs", "1"), ("min-inputs", "-3"),
        ("max-group-size", "1MiB"), ("min-age", "5"), ("quiet-hours", "late"), ("quiet-hours", "25:00-26:00"),
        ("quiet-hours", "22:00-22:00"), ("quiet-hours", "22:00-06:00 Nowhere/Land"), ("quiet-hours", "00:00-24:00"),
        ("quiet-hours", "22:00-06:60"), ("quiet-hours", "23:00-24:30"), ("quiet-hours", "../../etc/passwd"),
        ("strategy", "magic"), ("target", "1GB"),
    ],
)  # fmt: skip
def test_a_property_that_can_not_be_read_is_named(name: str, value: str) -> None:
    with pytest.raises(PolicyProblem, match=f"compaction.{name}"):
        read_policy({f"compaction.{name}": value})


@pytest.mark.parametrize(
    ("text", "now", "until"),
    [
        ("22:00-06:00", "2026-03-01T21:59:59", None),
        ("22:00-06:00", "2026-03-01T22:00:00", "2026-03-02T06:00:00"),
        ("22:00-06:00", "2026-03-02T05:59:30", "2026-03-02T06:00:30"),  # at least a minute from now
        ("22:00-06:00", "2026-03-02T06:00:00", None),
        ("08:00-12:00, 12:00-13:00", "2026-03-02T09:30:00", "2026-03-02T13:00:00"),  # together
        ("20:00-24:00", "2026-03-02T23:00:00", "2026-03-03T00:00:00"),
        ("22:00-06:00 Europe/Berlin", "2026-03-01T21:00:00", "2026-03-02T05:00:00"),  # winter: an hour ahead
        ("22:00-06:00 Europe/Berlin", "2026-03-28T21:30:00", "2026-03-29T04:00:00"),  # the night that is short
        ("22:00-06:00 UTC", "2026-03-01T23:00:00", "2026-03-02T06:00:00"),
    ],
)
def test_quiet_hours(text: str, now: str, until: str | None) -> None:
    found = read_quiet_hours("compaction.quiet-hours", text).until_ms(at(now))
    assert found == (None if until is None else at(until))


def test_quiet_hours_never_end_in_the_past_where_clocks_go_back() -> None:
    hours = read_quiet_hours("x", "01:00-02:30 Europe/Berlin")
    now = at("2026-10-25T01:15:00")  # 02:15 for the second time
    end = hours.until_ms(now)
    assert end is not None
    assert end > now


def test_a_policy_can_be_shown() -> None:
    shown = read_policy({"compaction.quiet-hours": "8:00-12:00,22:00-06:00 UTC"}).shown()
    assert shown["quiet_hours"] == "08:00-12:00, 22:00-06:00 UTC"
    assert shown["target_bytes"] == 128 * MIB
