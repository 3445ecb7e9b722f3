from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.compactor.scheduling.counters import Counters
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.quiet_hours import read_quiet_hours
from components.compactor.scheduling.scoring import (
    DISABLED,
    FILLS,
    MANY,
    SETTINGS,
    TOO_EXPENSIVE,
    YOUNG,
    CompactionVerdict,
    FileSet,
    judge,
)
from tests.unit.components.compactor.scheduling.lakes import MIB, Lake

NOON = 1_700_049_600_000  # 12:00 UTC


def verdict(
    sizes: list[float], own: list[float] | None = None, *, young: int = 0, **policy: Any
) -> CompactionVerdict | None:
    """Judges a partition with files of these sizes in MiB; the last ``young`` are new, the others old."""
    lake = Lake()
    counters = Counters(policy.get("min_age_ms", 0))
    files = [lake.new(int(size * MIB), created_at=NOON - 10**9) for size in sizes]
    files += [lake.new(int(size * MIB), operation="compaction", created_at=NOON - 10**9) for size in own or []]
    files += [lake.new(MIB, created_at=NOON) for _ in range(young)]
    for file in files:
        counters.count(file)
    ripe_at = counters.ripen((1, ""), NOON)
    counts = counters.of((1, ""))
    assert counts is not None
    return judge(counts, CompactionPolicy(**policy), NOON, ripe_at=ripe_at)


def test_too_few_small_files_give_no_verdict() -> None:
    assert verdict([1] * 4) is None
    assert verdict([100] * 50) is None, "right-sized"
    assert verdict([], own=[1] * 50) is None, "its own output, and nothing new"


def test_many_small_files() -> None:
    found = verdict([1] * 5)
    assert found is not None
    assert (found.status, found.rule, found.reason, found.until_ms) == ("waiting", MANY, None, None)
    assert found.picked == FileSet(5, 5 * MIB, MIB, 5)
    assert found.score == pytest.approx(4 / 5), "files removed for a MiB rewritten"


def test_a_large_file_is_not_rewritten_for_small_ones() -> None:
    found = verdict([1] * 5, own=[90])
    assert found is not None
    assert (found.small.files, found.picked.files, found.picked.size_bytes) == (6, 5, 5 * MIB)


def test_a_file_of_similar_size_is_merged() -> None:
    found = verdict([1], own=[5, 5, 5, 5, 5])
    assert found is not None
    assert found.picked.files == 6


def test_files_that_fill_a_target_include_a_large_one() -> None:
    found = verdict([8] * 5, own=[90])
    assert found is not None
    assert (found.rule, found.picked.files, found.picked.outputs(CompactionPolicy())) == (FILLS, 6, 1)


def test_too_expensive() -> None:
    found = verdict([0.1, 1, 7, 40], own=[90, 93])
    assert found is not None
    found = verdict([0.01, 0.1, 1, 8], own=[60])
    assert found is not None
    assert (found.status, found.rule) == ("declined", TOO_EXPENSIVE)
    assert found.reason is not None


def test_settings() -> None:
    off = verdict([1] * 9, enabled=False)
    assert off is not None
    assert (off.status, off.rule) == ("declined", DISABLED)
    lake, counters = Lake(), Counters()
    for _ in range(5):
        counters.count(lake.new())
    counts = counters.of((1, ""))
    assert counts is not None
    bad = judge(counts, CompactionPolicy(), NOON, problem="compaction.min-age = 'x': write a duration")
    assert bad is not None
    assert (bad.status, bad.rule) == ("declined", SETTINGS)
    assert "compaction.min-age" in (bad.reason or "")


def test_young_files_wait_for_their_age() -> None:
    found = verdict([1] * 3, young=2, min_age_ms=60_000)
    assert found is not None
    assert (found.status, found.rule, found.reason) == ("declined", YOUNG, "files have to be 60 s old")
    assert found.until_ms is not None
    assert NOON + 60_000 < found.until_ms <= NOON + 75_000
    old = verdict([1] * 5, young=2, min_age_ms=60_000)
    assert old is not None
    assert (old.status, old.picked.files, old.small.files) == ("waiting", 5, 7)


def test_no_job_begins_in_quiet_hours() -> None:
    found = verdict([1] * 5, quiet_hours=read_quiet_hours("x", "11:00-13:00"))
    assert found is not None
    assert (found.status, found.rule, found.until_ms) == ("waiting", MANY, NOON + 3_600_000)
    assert found.reason == "quiet hours: 11:00-13:00 UTC"


@settings(deadline=None)
@given(st.integers(1, 10**12), st.floats(0.01, 0.75))
def test_outputs_are_near_the_target_and_not_small(size: int, ratio: float) -> None:
    policy = CompactionPolicy(small_ratio=ratio)
    file_set = FileSet(10**6, size, MIB, 1)
    each = file_set.size_bytes / file_set.outputs(policy)
    assert each <= 1.5 * policy.target_bytes
    assert each >= policy.small_bytes or file_set.outputs(policy) == 1
