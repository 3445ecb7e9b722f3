"""Which segments are merged, and how often a record is rewritten."""

from __future__ import annotations

from components.segment_store.maintenance.merge_policy import MergePolicy, SmallSegments, choose_runs
from registry.models import Segment

POLICY = MergePolicy(small_bytes=1_000, target_bytes=4_000, min_segments=3, min_age_ms=100)
NOW = 10_000


def segments(*sizes: int, age: int = 1_000, gap_after: int | None = None) -> list[Segment]:
    made, base = [], 0
    for number, size in enumerate(sizes):
        made.append(Segment(number + 1, "t", 0, base, base + 9, 10, size, "b", f"k{number}", 0, NOW - age))
        base += 10 if number != gap_after else 20
    return made


def ids(runs: list[list[Segment]]) -> list[list[int]]:
    return [[segment.id for segment in run] for run in runs]


def test_small_adjacent_segments_are_a_run() -> None:
    assert ids(choose_runs(segments(5, 5, 5, 5), POLICY, NOW)) == [[1, 2, 3, 4]]


def test_too_few_segments_are_not_merged() -> None:
    assert choose_runs(segments(5, 5), POLICY, NOW) == []
    assert choose_runs([], POLICY, NOW) == []


def test_a_large_segment_ends_a_run() -> None:
    assert ids(choose_runs(segments(5, 5, 5, 1_000, 5, 5, 5), POLICY, NOW)) == [[1, 2, 3], [5, 6, 7]]


def test_a_gap_in_the_offsets_ends_a_run() -> None:
    assert ids(choose_runs(segments(5, 5, 5, 5, 5, 5, gap_after=2), POLICY, NOW)) == [[1, 2, 3], [4, 5, 6]]


def test_young_segments_are_not_merged() -> None:
    young = segments(5, 5, 5, age=50)
    assert choose_runs(young, POLICY, NOW) == []
    assert ids(choose_runs(young, POLICY, NOW + 50)) == [[1, 2, 3]]


def test_a_merged_segment_is_rewritten_only_after_as_many_new_bytes() -> None:
    assert ids(choose_runs(segments(100, 5, 5, 5), POLICY, NOW)) == [[2, 3, 4]]
    assert ids(choose_runs(segments(100, 50, 25, 25), POLICY, NOW)) == [[1, 2, 3, 4]]


def test_a_run_ends_at_the_target() -> None:
    runs = choose_runs(segments(*[900] * 10), POLICY, NOW)
    assert ids(runs) == [[3, 4, 5, 6], [7, 8, 9, 10]]


def test_a_record_is_merged_about_as_often_as_its_partition_doubles() -> None:
    """Ten thousand appends of one byte, merged as soon as there is a run: counts how often a byte is rewritten."""
    policy = MergePolicy(small_bytes=1_000_000, target_bytes=4_000_000, min_segments=8, min_age_ms=0)
    held: list[Segment] = []
    written = 0
    for number in range(10_000):
        held.append(Segment(number, "t", 0, number, number, 1, 1, "b", "k", 0, 0))
        for run in choose_runs(held, policy, NOW):
            at = held.index(run[0])
            size = sum(segment.size_bytes for segment in run)
            written += size
            merged = Segment(0, "t", 0, run[0].base_offset, run[-1].end_offset, size, size, "b", "k", 0, 0)
            held[at : at + len(run)] = [merged]
    assert written / 10_000 < 8
    assert len(held) < 30


def test_leftovers_count_towards_the_next_merge() -> None:
    small = SmallSegments(POLICY)
    small.add_leftovers({("t", 0): 2, ("t", 1): 0})
    assert small.take_due(10) == {}
    small.add(segments(2_000, 5))
    assert small.take_due(10) == {("t", 0): 10}  # the new one begins there


def test_partitions_become_due_by_new_segments() -> None:
    small = SmallSegments(POLICY)
    small.add(segments(2_000, 5, 5))
    assert small.take_due(10) == {}
    small.add(segments(2_000, 2_000, 5))
    assert small.take_due(10) == {("t", 0): 10}
    assert small.take_due(10) == {}
    small.put_back({("t", 0): 70})
    small.put_back({("t", 0): 90})
    assert small.take_due(0) == {}
    assert small.take_due(1) == {("t", 0): 70}
    small.put_back({("t", 0): 0})
    small.forget("t")
    assert len(small) == 0


def test_a_run_has_a_greatest_length() -> None:
    policy = MergePolicy(small_bytes=1_000, target_bytes=4_000, min_segments=3, min_age_ms=0, max_segments=4)
    assert ids(choose_runs(segments(*[5] * 9), policy, NOW)) == [[2, 3, 4, 5], [6, 7, 8, 9]]
