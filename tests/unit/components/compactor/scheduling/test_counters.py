from __future__ import annotations

import msgspec
import pytest

from components.compactor.scheduling.counters import AGED, Counters, Tiers, tier_of
from tests.doubles.clock import ManualClock
from tests.unit.components.compactor.scheduling.lakes import MIB, Lake


def counted(tiers: Tiers) -> tuple[int, int, int]:
    cells = tiers.values()
    return sum(c.files for c in cells), sum(c.size_bytes for c in cells), sum(c.own for c in cells)


def test_tiers_are_a_quarter_of_a_doubling() -> None:
    sizes = [0, 1, 3, 4, 5, 6, 7, 8, 100, 1_000, MIB - 1, MIB, 128 * MIB, 2**62]
    tiers = [tier_of(size) for size in sizes]
    assert tiers == sorted(tiers)
    assert len({tier_of(size) for size in range(MIB, 2 * MIB, 1_000)}) == 4
    assert tier_of(MIB) + 4 == tier_of(2 * MIB)


def test_files_are_added_and_removed() -> None:
    lake, counters = Lake(), Counters()
    events = lake.change(new=[lake.new(100), lake.new(100, operation="compaction"), lake.new(5_000, file_type="json")])
    for event in events[:3]:
        assert counters.apply(event) == {(1, "")}  # type: ignore[arg-type]
    counts = counters.of((1, ""))
    assert counts is not None
    assert (counts.files, counts.size_bytes, counts.rows) == (3, 5_200, 52)
    assert counted(counts.aged()) == (2, 200, 1), "only Parquet files are merged"
    one = lake.files[1]
    moved = lake.change([one], [msgspec.structs.replace(one, partition_path="d=1", file_size=7)])
    assert counters.apply(moved[0]) == {(1, ""), (1, "d=1")}  # type: ignore[arg-type]
    assert counters.paths(1) == ["", "d=1"]
    for event in lake.change([lake.files[1]])[:1]:
        counters.apply(event)  # type: ignore[arg-type]
    assert list(counters) == [(1, "")], "a partition without files is forgotten"


def test_files_reach_the_minimum_age() -> None:
    clock = ManualClock(1_000_000)
    lake, counters = Lake(clock), Counters()
    assert counters.tune(1, 4_000, clock.now_ms())
    counters.count(lake.new(100))
    clock.advance(2_000)
    counters.count(lake.new(100))
    key = (1, "")
    counts = counters.of(key)
    assert counts is not None
    ripe_at = counters.ripen(key, clock.now_ms())
    assert ripe_at == 1_005_000, "its period is over at 1,001,000, and all of it four seconds later"
    assert counted(counts.aged()) == (0, 0, 0)
    assert counters.ripen(key, 1_004_999) == ripe_at
    assert counters.ripen(key, 1_005_000) == 1_007_000
    assert counted(counts.aged()) == (1, 100, 0)
    assert counters.ripen(key, 1_007_000) is None
    assert counted(counts.aged()) == counted(counts.all_tiers()) == (2, 200, 0)
    counters.count(lake.new(100, created_at=1_000_500))
    assert counted(counts.aged()) == (3, 300, 0), "of a period that is over"


@pytest.mark.parametrize(("first", "then"), [(0, 4_000), (4_000, 0), (4_000, 60_000), (60_000, 4_000)])
def test_another_minimum_age_loses_nothing(first: int, then: int) -> None:
    clock = ManualClock(1_000_000)
    lake, counters = Lake(clock), Counters(first)
    ahead = lake.new(100, created_at=1_030_000)  # by a writer whose clock is
    files = [lake.new(100), ahead]
    for file in files:
        counters.count(file)
    assert counters.tune(1, then, clock.now_ms())
    assert not counters.tune(1, then, clock.now_ms())
    counts = counters.of((1, ""))
    assert counts is not None
    assert counted(counts.aged()) == (2, 200, 0), "taken for old enough: the plan looks closer"
    for file in files[1:]:
        counters.count(file, -1)
    assert {period: counted(tiers) for period, tiers in counts.tiers.items()} == {AGED: (1, 100, 0)}


def test_statistics_are_compared() -> None:
    lake, counters = Lake(), Counters()
    lake.insert(100, 200)
    for file in lake.files.values():
        counters.count(file)
    stats = lake.stats[1, ""]
    assert counters.compare(stats) is None
    wrong = counters.compare(msgspec.structs.replace(stats, file_count=3))
    assert str(wrong) == (
        "partition '' of table 1: (2, 300, 3) files, bytes and rows by events, (3, 300, 3) by statistics"
    )
    assert counters.compare(msgspec.structs.replace(stats, partition_path="x", file_count=0, total_size=0)) is not None


@pytest.mark.parametrize("files_first", [True, False])
def test_nothing_of_a_dropped_table_is_kept(files_first: bool) -> None:
    lake, counters = Lake(), Counters()
    counters.tune(1, 4_000, 0)
    file = lake.new(100)
    counters.count(file)
    if files_first:
        counters.count(file, -1)
        counters.forget(1)
    else:
        counters.forget(1)
        counters.count(file, -1)
    assert list(counters) == []
    assert not counters._periods_ms
    assert not counters._gone
