from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.compactor.planning import file_selection
from components.compactor.planning.file_selection import (
    BAD_FILES,
    OTHER_SPEC,
    REQUESTED,
    CompactionPlan,
    FileSelection,
    make_plan,
    select_files,
)
from components.compactor.planning.partition_deletes import PartitionDeletes
from components.compactor.scheduling.policy import CompactionPolicy
from components.compactor.scheduling.quiet_hours import read_quiet_hours
from components.compactor.scheduling.scoring import (
    DELETED_ROWS,
    DISABLED,
    FILLS,
    MANY,
    NO_LONGER_NEEDED,
    QUIET,
    TOO_EXPENSIVE,
    YOUNG,
)
from registry.json_text import parse_json
from registry.models import TableDeleteFile, TableFile
from tests.delete_files import delete_row
from tests.unit.components.compactor.scheduling.lakes import MIB, Lake

NOW = 1_700_000_000_000


def planned(files: list[TableFile], *, order_columns: int = 0, forced: bool = False, **settings: Any) -> CompactionPlan:
    policy = CompactionPolicy(**settings)
    selection = FileSelection(policy, NOW, forced=forced)
    for file in files:
        selection.add(file)
    return make_plan(selection, policy, order_columns=order_columns, forced=forced)


def files(*sizes: float, **fields: Any) -> list[TableFile]:
    lake = Lake()
    return [lake.new(int(size * MIB), **{"created_at": NOW - 10**9, **fields}) for size in sizes]


def test_small_files_become_one_group() -> None:
    found = planned(files(1, 200, 2, 1, 96, 1, 2))
    (group,) = found.groups
    assert [file.file_size // MIB for file in group.files] == [1, 2, 1, 1, 2], "in the order in which they came"
    assert (group.outputs, group.target_bytes) == (1, 128 * MIB)
    assert (found.rule, found.input_files, found.input_bytes) == (MANY, 5, 7 * MIB)
    assert found.score == pytest.approx(4 / 7)
    assert found.strategy == "copy"


def test_large_file_sets_are_divided_evenly() -> None:
    found = planned(files(*[30] * 20), max_group_bytes=256 * MIB)
    assert [(len(group.files), group.outputs) for group in found.groups] == [(7, 2), (7, 2), (6, 1)]
    assert found.groups[0].target_bytes == 105 * MIB
    assert found.groups[2].target_bytes == 180 * MIB
    assert found.rule == FILLS


def test_inputs_that_were_removed_before_the_job() -> None:
    found = planned(files(1, 1, 1))
    assert (found.groups, found.rule, found.small) == ((), NO_LONGER_NEEDED, 3)
    found = planned(files(1, 1, 1, file_type="json"))
    assert (found.rule, found.small) == (NO_LONGER_NEEDED, 0)


def test_bad_files_are_left_out_and_are_the_reason_if_too_few_others_are_there() -> None:
    found = files(1, 1, 1, 1, 1, 1)
    bad = {found[0].file_path: "is damaged"}
    policy = CompactionPolicy()
    selection = FileSelection(policy, NOW, bad=bad)
    for file in found:
        selection.add(file)
    made = make_plan(selection, policy, order_columns=0)
    assert (made.input_files, made.left_out) == (5, 1)
    assert '"left_out":1' in str(made.explanation(policy)).replace(" ", "")
    selection = FileSelection(policy, NOW, bad=bad)
    for file in found[:5]:
        selection.add(file)
    made = make_plan(selection, policy, order_columns=0)
    assert (made.groups, made.rule, made.left_out) == ((), BAD_FILES, 1)
    assert made.reason == f"1 left out, such as {found[0].file_path}: it is damaged"


def test_young_and_too_expensive() -> None:
    found = planned([*files(1, 1), *files(1, 1, 1, created_at=NOW - 10)], min_age_ms=60_000)
    assert (found.groups, found.rule, found.young, found.ripe_at) == ((), YOUNG, 3, NOW - 10 + 60_000)
    found = planned(files(0.01, 0.1, 1, 8, 60))
    assert (found.groups, found.rule) == ((), TOO_EXPENSIVE)


def test_outputs_of_compactions_alone_are_not_merged() -> None:
    own = files(1, 1, 1, 1, 1, operation="compaction", operation_id="op")
    assert planned(own).groups == ()
    assert planned([*own, *files(1)]).input_files == 6


def test_a_forced_plan_merges_any_two_small_files() -> None:
    found = planned(files(0.1, 90, created_at=NOW), forced=True, min_age_ms=60_000)
    assert (found.rule, found.input_files) == (REQUESTED, 2)
    assert planned(files(1), forced=True).groups == ()
    assert planned(files(95, 95), forced=True).input_files == 2
    assert planned(files(1, 1, operation="compaction", operation_id="op"), forced=True).input_files == 2


def test_a_plan_checks_the_settings_again() -> None:
    found = planned(files(1, 1, 1, 1, 1), enabled=False)
    assert (found.groups, found.rule) == ((), DISABLED)
    quiet = read_quiet_hours("x", "22:00-23:00")  # it is 22:13
    found = planned(files(1, 1, 1, 1, 1), quiet_hours=quiet)
    assert (found.groups, found.rule, found.reason) == ((), QUIET, "22:00-23:00 UTC")
    assert found.ripe_at == quiet.until_ms(NOW)
    assert len(planned(files(1, 1), enabled=False, quiet_hours=quiet, forced=True).groups) == 1


def test_strategies() -> None:
    small, large = files(0.2, 0.2), files(20, 20)

    def chosen(some: list[TableFile], order_columns: int, **settings: Any) -> tuple[str, str]:
        made = planned(some, order_columns=order_columns, forced=True, **settings)
        return made.strategy, made.why

    assert chosen(small, 1) == ("sort", "the table has sort_by")
    assert chosen(large, 1)[0] == "sort"
    assert chosen(small, 0)[0] == "binpack"
    assert chosen(large, 0)[0] == "copy"
    assert chosen(small, 0, strategy="copy") == ("copy", "the settings say so")
    assert chosen(small, 1, strategy="copy") == ("sort", "the table has sort_by")
    assert chosen(small, 2, strategy="zorder") == ("zorder", "the settings say so")
    assert chosen(small, 1, strategy="zorder")[0] == "sort"
    assert chosen(small, 0, strategy="sort") == ("binpack", "the settings say sort, but the table has no sort_by")


async def test_a_plan_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_selection, "MOST_FILES", 30)
    monkeypatch.setattr(file_selection, "MOST_IN_GROUP", 8)

    async def stream() -> Any:
        for file in files(*[0.5] * 50):
            yield file

    selection = await select_files(stream(), CompactionPolicy(), NOW)
    found = make_plan(selection, CompactionPolicy(), order_columns=0)
    assert [len(group.files) for group in found.groups] == [8, 8, 8, 6]
    assert (found.left, found.small) == (20, 50)


def test_a_plan_is_explained() -> None:
    policy = CompactionPolicy()
    explained = parse_json(planned(files(1, 1, 1, 1, 1)).explanation(policy))
    assert isinstance(explained, dict)
    assert explained["rule"] == MANY
    assert explained["cost"] == {"bytes_rewritten": 5 * MIB, "bytes_per_file_removed": 5 * MIB // 4}
    assert explained["groups"] == [{"files": 5, "bytes": 5 * MIB, "outputs": 1}]
    assert explained["policy"] == policy.shown()


sizes = st.lists(st.one_of(st.integers(0, 2 * MIB), st.integers(0, 300 * MIB)), max_size=60)


@settings(deadline=None)
@given(sizes, st.integers(2, 8), st.booleans())
def test_groups_respect_the_policy(drawn: list[int], min_inputs: int, forced: bool) -> None:
    lake = Lake()
    rows = [lake.new(size, created_at=NOW - 10**9) for size in drawn]
    policy = CompactionPolicy(min_inputs=min_inputs, max_group_bytes=256 * MIB)
    found = planned(rows, forced=forced, min_inputs=min_inputs, max_group_bytes=256 * MIB)
    taken = [file for group in found.groups for file in group.files]
    assert len({file.id for file in taken}) == len(taken)
    for group in found.groups:
        assert len(group.files) > group.outputs >= 1
        assert group.size_bytes <= policy.max_group_bytes
        assert all(file.file_size < policy.small_bytes for file in group.files)
        assert group.outputs * group.target_bytes >= group.size_bytes
    if not found.groups:
        assert found.reason is not None
    elif not forced:
        assert found.score > 0


def with_deletes(
    files: list[TableFile], *deletes: TableDeleteFile, forced: bool = False, **settings: Any
) -> CompactionPlan:
    policy = CompactionPolicy(**settings)
    selection = FileSelection(policy, NOW, forced=forced, deletes=PartitionDeletes(deletes))
    for file in files:
        selection.add(file)
    return make_plan(selection, policy, order_columns=0, forced=forced)


def test_files_with_many_deleted_rows_are_rewritten_whatever_their_size() -> None:
    large, other = files(200, 300)
    third = large.row_count * 3 // 4  # of all rows, it is 30 percent
    named = delete_row(1, row_count=third, referenced_data_file=large.file_path)
    found = with_deletes([large, other], named)
    assert [[file.id for file in group.files] for group in found.groups] == [[large.id]]
    assert (found.rule, found.has_deletes) == (DELETED_ROWS, True)
    anywhere = delete_row(1, row_count=third)
    found = with_deletes([large, other], anywhere)
    assert sorted(file.id for group in found.groups for file in group.files) == [large.id, other.id]
    few = delete_row(1, row_count=third - 1, referenced_data_file=large.file_path)
    found = with_deletes([large, other], few)
    assert (found.groups, found.rule) == ((), NO_LONGER_NEEDED)
    assert with_deletes([large, other], few, forced=True).rule == REQUESTED
    assert with_deletes([large, other], few, delete_ratio=0.2).rule == DELETED_ROWS


def test_small_files_beside_deleted_rows_are_merged_with_them() -> None:
    *small, large = files(1, 1, 1, 1, 1, 200)
    deletes = delete_row(1, row_count=large.row_count, referenced_data_file=large.file_path)
    found = with_deletes([*small, large], deletes, max_group_bytes=1024 * MIB)
    assert [len(group.files) for group in found.groups] == [6]


def test_what_a_compaction_wrote_after_the_deletes_is_not_rewritten_for_them() -> None:
    (written,) = files(200, operation="compaction", created_at=NOW)
    deletes = delete_row(1, row_count=written.row_count, created_at=NOW - 1)
    assert with_deletes([written], deletes).groups == ()
    again = delete_row(2, row_count=written.row_count, created_at=NOW + 1)
    assert len(with_deletes([written], deletes, again).groups) == 1


def test_files_of_another_partition_spec_are_not_merged() -> None:
    policy = CompactionPolicy()
    selection = FileSelection(policy, NOW, versions=frozenset((2,)))
    for file in files(1, 1, 1, 1, 1):
        selection.add(file)
    found = make_plan(selection, policy, order_columns=0)
    assert (found.groups, found.rule) == ((), OTHER_SPEC)
    assert found.reason is not None
    assert "an older partition spec" in found.reason
