"""Where rows are in DynamoDB: keys that sort as values do, and a unique pointer for each constraint of the schema."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Index, UniqueConstraint

from registry.errors import Invalid
from registry.models import PUBLISHED, UNPUBLISHED, Row, Topic
from registry.schema import table_of
from registry.stores.dynamodb.changes import Change, decode_changes, encode_changes, separated
from registry.stores.dynamodb.constraints import check_values, parents
from registry.stores.dynamodb.layout import LAYOUTS, MAX_SORT_KEY_BYTES, sort_key, sort_prefix
from tests.samples import ONE_OF_EACH

NAMES = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1, max_size=20)


def test_every_table_has_a_place() -> None:
    assert set(LAYOUTS) == {*PUBLISHED, *UNPUBLISHED}


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.table)
def test_every_unique_constraint_is_enforced(kind: type[Row]) -> None:
    layout = LAYOUTS[kind]
    enforced = {frozenset((*layout.scope, *layout.sort))}
    enforced |= {frozenset((*one.scope, *one.sort)) for one in layout.pointers if one.unique}
    table = table_of(kind)
    wanted = {frozenset(column.name for column in one.columns) for one in table.constraints
              if isinstance(one, UniqueConstraint)}  # fmt: skip
    wanted |= {frozenset(column.name for column in one.columns) for one in table.indexes
               if isinstance(one, Index) and one.unique}  # fmt: skip
    assert wanted <= enforced
    if "id" not in kind.key:
        assert frozenset(kind.key) in enforced


@given(st.lists(st.tuples(NAMES, st.integers(0, 2**63 - 1), NAMES), min_size=2, max_size=8))
def test_keys_sort_as_values(rows: list[tuple[str, int, str]]) -> None:
    assert [sort_key(*row) for row in sorted(rows)] == sorted(sort_key(*row) for row in rows)


@given(st.tuples(st.text(max_size=8), st.text(max_size=8)), st.tuples(st.text(max_size=8), st.text(max_size=8)))
def test_different_values_have_different_keys(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (sort_key(*one) == sort_key(*other)) == (one == other)
    assert sort_key(*one).startswith(sort_prefix(one[0]))


def test_long_keys_fit_and_differ() -> None:
    keys = {sort_key("ä" * 1_000 + tail) for tail in "abc"}
    assert len(keys) == 3
    assert all(len(key.encode()) <= MAX_SORT_KEY_BYTES for key in keys)


def test_changes_are_encoded_and_decoded() -> None:
    changes = [Change(type(row), None, row) for row in ONE_OF_EACH]
    changes += [Change(type(row), row, None) for row in ONE_OF_EACH]
    assert [one for chunk in encode_changes(changes) for one in decode_changes(chunk)] == changes


def test_a_pointer_that_one_row_gives_up_and_another_takes_stays() -> None:
    (old,) = [row for row in ONE_OF_EACH if row.table == "table_files"]
    new = msgspec.structs.replace(old, id=99)
    changes = [Change(type(old), old, None), Change(type(old), None, new)]
    for ordered in (changes, changes[::-1]):
        (chunk,) = encode_changes(separated(ordered))
        actions = [action for change in decode_changes(chunk) for action in change.actions()]
        assert len({action.key for action in actions}) == len(actions), "in any order, and repeatedly"
        (found,) = (action for action in actions if action.key[0].startswith("table_files.path"))
        assert found.kind == "put"


def test_references_and_checks_are_those_of_the_schema() -> None:
    for row in ONE_OF_EACH:
        check_values(row)
    keys = {LAYOUTS[type(row)].key(row) for row in ONE_OF_EACH}
    referencing = [row for row in ONE_OF_EACH if list(parents(row))]
    assert {row.table for row in referencing} >= {"segments", "table_files", "group_leases", "consumer_offsets"}
    assert all(key in keys for row in referencing for _, key in parents(row))
    topic = cast("Topic", ONE_OF_EACH[0])
    for field, value in (("partition_count", 0), ("retention_ms", -1), ("config", "{")):
        with pytest.raises(Invalid, match=field):
            check_values(msgspec.structs.replace(topic, **{field: value}))
