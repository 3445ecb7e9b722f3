from __future__ import annotations

import msgspec
import pytest

from astha.errors import Reject
from components.compactor.planning.file_selection import CompactionPlan, FileSelection, make_plan
from components.compactor.scheduling.budget import BudgetLimits
from components.compactor.scheduling.journal import Decision
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.scheduler import Candidate, Scheduler
from components.compactor.scheduling.scoring import (
    DELETE_FILES,
    DELETED_ROWS,
    DISABLED,
    MANY,
    NO_LONGER_NEEDED,
    SETTINGS,
    TOO_EXPENSIVE,
    YOUNG,
)
from registry.json_text import parse_json
from registry.models import TableFile
from tests.delete_files import delete_row
from tests.doubles.clock import ManualClock
from tests.unit.components.compactor.scheduling.lakes import MIB, Lake, Snapshot

A, B = (1, "a"), (1, "b")


async def following(lake: Lake, **limits: int) -> Scheduler:
    scheduler = Scheduler(CompactionPolicy(), BudgetLimits(**{"concurrent_jobs": 1, **limits}), lake.clock)
    await scheduler.load(Snapshot(lake))
    return scheduler


def drafts(scheduler: Scheduler) -> list[tuple[str, str, str, str | None]]:
    return [
        (draft.partition_path, draft.status, draft.rule, draft.reason)
        for draft in (one.draft("db.t") for one in scheduler.unrecorded())
    ]


def taken(scheduler: Scheduler) -> Candidate:
    candidate = scheduler.take()
    assert candidate is not None
    return candidate


def planned(lake: Lake, candidate: Candidate) -> CompactionPlan:
    selection = FileSelection(candidate.decision.policy, lake.clock.now_ms())
    for file in lake.of(candidate.key[1]):
        selection.add(file)
    return make_plan(selection, candidate.decision.policy, order_columns=0)


async def test_the_commit_that_crosses_the_threshold_brings_the_decision() -> None:
    lake = Lake()
    scheduler = await following(lake)
    for _ in range(4):
        assert scheduler.apply(lake.insert(MIB, partition="a")) == []
    assert scheduler.take() is None
    (decision,) = scheduler.apply(lake.insert(MIB, partition="a"))
    assert (decision.key, decision.verdict.rule, decision.position) == (A, MANY, lake.position)
    lake.clock.advance(10)
    assert scheduler.apply(lake.insert(MIB, partition="a")) == [], "the same decision again is no news"
    candidate = taken(scheduler)
    assert candidate.key == A
    assert (candidate.decision.verdict.picked.files, candidate.waited_ms) == (6, 10)
    assert candidate.decision.decided_at == lake.clock.now_ms() - 10
    assert scheduler.take() is None


async def test_a_repeated_transaction_is_counted_once() -> None:
    lake = Lake()
    scheduler = await following(lake)
    events = lake.insert(*[MIB] * 5, partition="a")
    assert len(scheduler.apply(events)) == 1
    assert scheduler.apply(events) == []
    counts = scheduler.counters.of(A)
    assert counts is not None
    assert counts.files == 5


async def test_the_highest_score_first_within_the_budget() -> None:
    lake = Lake()
    scheduler = await following(lake, bytes_per_hour=100 * MIB)
    scheduler.apply(lake.insert(*[4 * MIB] * 6, partition="a"))
    scheduler.apply(lake.insert(*[MIB] * 6, partition="b"))
    first = taken(scheduler)
    assert first.key == B
    scheduler.spend(150 * MIB)
    assert scheduler.take() is None, "one job at once"
    assert scheduler.wakes_at() is None
    scheduler.apply(lake.swap(lake.of("b"), [6 * MIB]))
    scheduler.finish(first, "done")
    assert scheduler.take() is None, "the hour's bytes are used up"
    wakes = scheduler.wakes_at()
    assert wakes is not None
    lake.clock.advance(wakes - lake.clock.now_ms())
    assert taken(scheduler).key == A


async def test_a_partition_waits_for_the_events_of_its_swap() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    candidate = taken(scheduler)
    swap = lake.swap(lake.of("a"), [5 * MIB])
    scheduler.finish(candidate, "done")
    assert scheduler.take() is None, "the counts are those from before the swap"
    scheduler.apply(swap)
    assert scheduler.take() is None
    assert len(scheduler.queue) == 0
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    again = taken(scheduler)
    scheduler.apply(lake.swap(lake.of("a"), [10 * MIB]))  # the events are quicker than the job
    scheduler.finish(again, "done")
    assert len(scheduler.queue) == 0


async def test_the_wait_for_events_of_a_swap_is_bounded() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    scheduler.finish(taken(scheduler), "done", swaps=2)
    lake.clock.advance(29_999)
    assert scheduler.take() is None
    lake.clock.advance(1)
    assert taken(scheduler).key == A


async def test_failed_partitions_wait_with_backoff() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    for wait_s in (60, 120, 240):
        scheduler.finish(taken(scheduler), "failed")
        scheduler.apply(lake.insert(MIB, partition="a"))
        lake.clock.advance(wait_s * 1_000 - 1)
        assert scheduler.take() is None
        lake.clock.advance(1)
    scheduler.finish(taken(scheduler), "done", swaps=0)
    assert taken(scheduler).key == A


async def test_a_plan_that_finds_nothing_is_a_decline_that_stays() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    candidate = taken(scheduler)
    assert drafts(scheduler) == [], "what runs is no news any more"
    scheduler.decline(candidate, CompactionPlan(rule=TOO_EXPENSIVE, reason="so expensive", small=5).verdict())
    for _ in range(3):
        scheduler.apply(lake.insert(MIB, partition="a"))
    assert drafts(scheduler) == [("a", "declined", TOO_EXPENSIVE, "so expensive")]
    assert scheduler.take() is None
    lake.clock.advance(5_000)
    assert taken(scheduler).key == A


async def test_swaps_of_others_end_the_wait() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    assert drafts(scheduler) == [("a", "waiting", MANY, None)]
    scheduler.apply(lake.change(lake.of("a")))
    assert drafts(scheduler) == [("a", "declined", NO_LONGER_NEEDED, "there are too few small files left")]
    assert scheduler.take() is None
    scheduler.apply(lake.insert(MIB, partition="a"))
    assert drafts(scheduler) == []


async def test_settings_of_a_table() -> None:
    lake = Lake(enabled="false")
    lake.create(2, min_inputs=2)
    lake.create(3, min_age="soon")
    scheduler = await following(lake)
    for table_id in (1, 2, 3, 4):
        scheduler.apply(lake.insert(*[MIB] * 5, table_id=table_id))
    assert {one.key[0]: one.verdict.rule for one in scheduler.unrecorded()} == {1: DISABLED, 2: MANY, 3: SETTINGS}
    assert scheduler.tables.to_read(lake.clock.now_ms()) == [4], "a table that was not read yet"
    assert taken(scheduler).key == (2, "")
    lake.create(4, enabled="false")
    scheduler.introduce(*lake.tables[4])
    assert {one.key[0]: one.verdict.rule for one in scheduler.unrecorded()} == {4: DISABLED}
    lake.create(3)
    scheduler.introduce(*lake.tables[3])
    assert {one.key[0]: one.verdict.rule for one in scheduler.unrecorded()} == {3: MANY}
    lake.clock.advance(10_000)
    assert set(scheduler.tables.to_read(lake.clock.now_ms())) == {1, 2}, "moved since they were read, long ago"
    for table_id in (1, 2):
        scheduler.introduce(*lake.tables[table_id])
    lake.clock.advance(50_000)
    assert set(scheduler.tables.to_read(lake.clock.now_ms())) == {4}
    lake.clock.advance(10_000)
    assert set(scheduler.tables.to_read(lake.clock.now_ms())) == {4, 1}, "those whose settings are in the way"


async def test_a_decision_waits_until_its_table_was_read() -> None:
    lake = Lake()
    scheduler = await following(lake)
    lake.create(2, min_inputs=7)
    lake.create(3)
    (early, other) = (scheduler.apply(lake.insert(*[MIB] * 5, table_id=number))[0] for number in (2, 3))
    assert (early.verdict.rule, other.verdict.rule) == (MANY, MANY)
    assert scheduler.take() is None, "their settings are not known"
    for table_id in (2, 3):
        scheduler.introduce(*lake.tables[table_id])
    assert taken(scheduler).key == (3, "")
    scheduler.apply(lake.insert(*[MIB] * 2, table_id=2))
    scheduler.finish(Candidate((3, ""), other, 0), "cancelled")
    assert taken(scheduler).key == (2, "")


async def test_a_table_that_can_not_be_read_is_not_compacted() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, table_id=9))
    for _ in range(2):
        assert scheduler.take() is None
        assert scheduler.wakes_at() == lake.clock.now_ms() + 1_000
        lake.clock.advance(1_000)


async def test_new_settings_of_a_large_table_are_applied_in_steps() -> None:
    lake = Lake(min_inputs=2)
    lake.change(new=[lake.new(MIB, f"d={number % 70}") for number in range(210)])
    scheduler = await following(lake)
    assert scheduler.waiting() == (70, 210 * MIB)
    lake.create(1, enabled="false")
    scheduler.introduce(*lake.tables[1])
    assert (scheduler.waiting(), scheduler.has_undecided()) == ((20, 60 * MIB), True)
    assert scheduler.take() is None
    assert (scheduler.waiting(), scheduler.has_undecided()) == ((0, 0), False)


async def test_partitions_whose_time_has_come_together_are_decided_in_steps() -> None:
    lake = Lake(min_inputs=2, min_age="4s")
    scheduler = await following(lake)
    scheduler.apply(lake.change(new=[lake.new(MIB, f"d={number % 120}") for number in range(360)]))
    wakes = scheduler.wakes_at()
    assert wakes is not None
    assert (scheduler.queue.held, scheduler.has_undecided()) == (120, False)
    lake.clock.advance(wakes - lake.clock.now_ms())
    assert scheduler.has_undecided()
    taken(scheduler)
    assert scheduler.queue.held == 70, "a job may begin before all are decided"
    steps = 0
    while scheduler.has_undecided():
        assert scheduler.take() is None
        steps += 1
    assert (steps, scheduler.queue.held, len(scheduler.queue)) == (2, 0, 119)


async def test_a_decision_by_age_alone() -> None:
    lake = Lake(min_age="4s")
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    assert [one[2] for one in drafts(scheduler)] == [YOUNG]
    wakes = scheduler.wakes_at()
    assert wakes is not None
    lake.clock.advance(wakes - lake.clock.now_ms())
    assert taken(scheduler).key == A
    assert scheduler.wakes_at() is None


async def test_no_job_begins_in_quiet_hours() -> None:
    lake = Lake(ManualClock(1_700_049_600_000), quiet_hours="11:00-13:00")
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    assert drafts(scheduler) == [("a", "waiting", MANY, "quiet hours: 11:00-13:00 UTC")]
    assert scheduler.take() is None
    assert scheduler.wakes_at() == lake.clock.now_ms() + 3_600_000
    lake.clock.advance(3_600_000)
    assert taken(scheduler).key == A


async def test_counts_that_drift_are_refreshed_and_wrong_statistics_are_not() -> None:
    lake = Lake()
    lake.insert(MIB, partition="a")
    lake.stats[A] = msgspec.structs.replace(lake.stats[A], file_count=7)  # wrong in the registry itself
    scheduler = await following(lake)
    scheduler.apply(lake.insert(MIB, partition="a"))
    lake.insert(MIB, partition="a")  # an event that never comes
    with pytest.raises(Reject, match=r"counts differ from the registry's.*partition 'a' of table 1"):
        scheduler.apply(lake.insert(MIB, partition="a"))
    await scheduler.load(Snapshot(lake))
    scheduler.apply(lake.insert(MIB, partition="a"))
    counts = scheduler.counters.of(A)
    assert counts is not None
    assert counts.files == 5


async def test_a_refresh_keeps_running_jobs_and_waiting_times() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    scheduler.apply(lake.insert(*[2 * MIB] * 5, partition="b"))
    candidate = taken(scheduler)
    lake.clock.advance(1_000)
    lake.insert(MIB, partition="b")
    assert [one.trigger for one in await scheduler.load(Snapshot(lake))] == []
    assert len(scheduler.queue) == 1
    scheduler.finish(candidate, "aborted")
    other = taken(scheduler)
    assert (other.key, other.waited_ms) == (B, 1_000)
    assert other.decision.verdict.picked.files == 6


async def test_a_dropped_table_is_forgotten() -> None:
    lake = Lake()
    lake.create(2)
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, table_id=2))
    del lake.tables[2]
    lake.files.clear()
    lake.stats.clear()
    await scheduler.load(Snapshot(lake))
    assert (len(scheduler.queue), len(scheduler.journal), len(scheduler.counters)) == (0, 0, 0)
    assert scheduler.tables.name(2) is None


async def test_decisions_that_could_not_be_written_are_returned_again() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    scheduler.apply(lake.insert(*[MIB] * 5, partition="b"))
    decisions: list[Decision] = scheduler.unrecorded()
    assert len(decisions) == 2
    assert scheduler.unrecorded() == []
    begun = taken(scheduler)
    scheduler.journal.put_back(decisions)
    assert [one.key for one in scheduler.unrecorded()] == [key for key in (A, B) if key != begun.key]


async def test_a_decision_is_recorded_with_its_reasons() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    (decision,) = scheduler.unrecorded()
    draft = decision.draft("db.t1")
    assert (draft.table_id, draft.partition_path, draft.status, draft.trigger) == (1, "a", "waiting", "event")
    assert (draft.position, draft.input_files, draft.input_bytes) == (lake.position, 5, 5 * MIB)
    explanation = parse_json(draft.explanation)
    assert isinstance(explanation, dict)
    assert explanation["counts"]["to_merge"] == {
        "files": 5, "size_bytes": 5 * MIB, "largest": MIB, "fresh": 5, "outputs": 1,
    }  # fmt: skip
    assert explanation["score"] == 0.8


async def test_small_files_and_bytes_rewritten_stay_bounded() -> None:
    """Thousands of inserts, each compaction done at once: write amplification and small files left are logarithmic."""
    lake = Lake(target_size="16MiB", max_group_size="64MiB")
    scheduler = await following(lake)
    small = 12 * MIB
    inserted = rewritten = jobs = most = 0
    for number in range(4_000):
        size = (20 + number * 7919 % 60) * 1024
        inserted += size
        scheduler.apply(lake.insert(size, partition="ab"[number % 10 == 0]))
        while (candidate := scheduler.take()) is not None:
            found = planned(lake, candidate)
            if not found.groups:
                scheduler.decline(candidate, found.verdict())
                continue
            jobs += 1
            rewritten += found.input_bytes
            for place, group in enumerate(found.groups):
                each = group.size_bytes // group.outputs
                scheduler.apply(lake.swap(group.files, [each] * group.outputs, f"{number}-{place}"))
            scheduler.finish(candidate, "done", swaps=len(found.groups))
        most = max(most, *(_small_files(lake.of(path), small) for path in "ab"))
        lake.clock.advance(100)
    assert rewritten / inserted < 5, "log3 of a right-sized file over the first merge's, and the last merge"
    assert most < 20
    assert jobs < 4_000 / 4
    for path in "ab":
        final = [file for file in lake.of(path) if file.file_size >= small]
        assert all(file.file_size <= 24 * MIB for file in final)


def _small_files(files: list[TableFile], below: int) -> int:
    return sum(file.file_size < below for file in files)


async def test_deleted_rows_bring_a_decision_at_once() -> None:
    lake = Lake()
    rows = sum(size * MIB // 100 for size in (200, 300))
    scheduler = await following(lake)
    scheduler.apply(lake.insert(200 * MIB, 300 * MIB, partition="a"))
    few = delete_row(1, row_count=rows // 10, partition_path="a")
    assert scheduler.apply(lake.delete_rows(few)) == []
    many = delete_row(2, row_count=rows // 4, partition_path="a")
    (decision,) = scheduler.apply(lake.delete_rows(many))
    assert (decision.key, decision.verdict.rule, decision.position) == (A, DELETED_ROWS, lake.position)
    again = await following(lake)
    candidate = taken(again)
    assert candidate.decision.verdict.rule == DELETED_ROWS, "a refresh counts them as well"
    again.apply(lake.swap(lake.of("a"), [400 * MIB]))
    again.apply(lake.delete_rows(removed=[few, many]))
    again.finish(candidate, "done")
    assert again.take() is None


async def test_delete_files_that_a_compaction_could_not_remove_do_not_cause_another() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(200 * MIB, partition="a"))
    rows = 200 * MIB // 100
    scheduler.apply(lake.delete_rows(delete_row(1, row_count=rows, partition_path="a")))
    candidate = taken(scheduler)
    scheduler.apply(lake.swap(lake.of("a"), [100 * MIB]))
    scheduler.apply(lake.delete_rows(delete_row(2, row_count=1, partition_path="a")))
    scheduler.finish(candidate, "done")
    assert scheduler.take() is None
    (decision,) = scheduler.apply(lake.delete_rows(delete_row(3, row_count=rows, partition_path="a")))
    assert decision.verdict.rule == DELETED_ROWS, "more deletes count again"


async def test_a_partition_with_deletes_that_can_not_be_applied_is_declined() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    equality = delete_row(1, content="equality", partition_path="a")
    (decision,) = scheduler.apply(lake.delete_rows(equality))
    assert (decision.verdict.status, decision.verdict.rule) == ("declined", DELETE_FILES)
    assert "equality delete files" in (decision.verdict.reason or "")
    assert scheduler.take() is None
    (decision,) = scheduler.apply(lake.delete_rows(removed=[equality]))
    assert decision.verdict.rule == MANY
    (decision,) = scheduler.apply(lake.delete_rows(delete_row(2, content="equality")))
    assert (decision.key, decision.verdict.rule) == (A, DELETE_FILES), "one for the whole table"


async def test_deletion_vectors_are_not_applied() -> None:
    lake = Lake()
    scheduler = await following(lake)
    scheduler.apply(lake.insert(*[MIB] * 5, partition="a"))
    vector = delete_row(1, file_type="puffin", content_offset=4, partition_path="a")
    (decision,) = scheduler.apply(lake.delete_rows(vector))
    assert "deletion vectors (Iceberg v3)" in (decision.verdict.reason or "")
