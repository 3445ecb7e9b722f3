from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import validation
from registry.errors import Invalid

BIG = 2**63


@pytest.mark.parametrize("value", [0, 1, BIG - 1])
def test_64_bit_integers_pass(value: int) -> None:
    validation.integer("n", value)


@pytest.mark.parametrize("value", [-1, BIG, True, False, 1.0, "1", None, float("inf")])
def test_other_numbers_are_refused_by_name(value: object) -> None:
    with pytest.raises(Invalid) as caught:
        validation.integer("n", value)
    assert (caught.value.field, caught.value.value) == ("n", value)


def test_the_message_says_what_the_limit_is() -> None:
    with pytest.raises(Invalid, match="64-bit"):
        validation.integer("n", BIG)
    with pytest.raises(Invalid, match="32-bit"):
        validation.integer32("n", 2**31)
    with pytest.raises(Invalid, match="at least 1"):
        validation.integer("n", 0, 1)
    with pytest.raises(Invalid, match="allowed number, 9"):
        validation.integer("n", 10, 1, 9)


@pytest.mark.parametrize("value", ["a", "ü", "a.b", "...", "x" * 255, "\U0001f600", "a b", "-", "a\\b"])
def test_names(value: str) -> None:
    validation.name("n", value)


@pytest.mark.parametrize(
    "value",
    ["", "/", "a/b", "a\0", "\0", ".", "..", "x" * 256, "a\n", "\x7f", "\u200b", "\ud800", None, b"a", 1, ["a"]],
)
def test_bad_names_are_refused(value: object) -> None:
    with pytest.raises(Invalid):
        validation.name("n", value)


def test_paths_are_limited_in_bytes() -> None:
    validation.non_empty_path("p", "ä" * 1_024)
    with pytest.raises(Invalid, match="2048 bytes"):
        validation.non_empty_path("p", "ä" * 1_024 + "a")
    validation.path("p", "")
    with pytest.raises(Invalid, match="empty"):
        validation.non_empty_path("p", "")


def test_booleans_ttls_and_choices() -> None:
    for good in (True, False):
        validation.boolean("f", good)
    for bad in (0, 1, None, "true"):
        with pytest.raises(Invalid, match="true or false"):
            validation.boolean("f", bad)
    validation.ttl("t", 1)
    for number in (0, -1, validation.MAX_TTL_MS + 1, True):
        with pytest.raises(Invalid):
            validation.ttl("t", number)
    validation.one_of("o", "a", ["a", "b"])
    with pytest.raises(Invalid, match="a, b"):
        validation.one_of("o", "c", ["a", "b"])
    validation.optional("o", None, validation.name)
    with pytest.raises(Invalid):
        validation.optional("o", "", validation.name)


_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-3, 3), st.integers(BIG - 2, BIG + 2), st.integers(2**31 - 2, 2**31 + 2), st.booleans(), st.none(),
    st.floats(), st.text(max_size=3), st.sampled_from(["a/b", "\ud800", "\0", ""]), st.lists(st.integers(), max_size=1),
)  # fmt: skip


@given(
    st.sampled_from(
        [
            validation.integer,
            validation.integer32,
            validation.name,
            validation.text,
            validation.non_empty_path,
            validation.boolean,
        ]
    ),
    st.lists(_VALUES, max_size=6),
)
def test_a_column_is_refused_exactly_if_one_of_its_values_is(check: validation.Check, column: list[object]) -> None:
    def refused(value: object) -> bool:
        try:
            check("f", value)
        except Invalid:
            return True
        return False

    first = next((row for row, value in enumerate(column) if refused(value)), None)
    if first is None:
        validation.every("f", column, check)
        return
    with pytest.raises(Invalid) as caught:
        validation.every("f", column, check)
    assert caught.value.field == (f"f of row {first}" if len(column) > 1 else "f")
    assert caught.value.value is column[first]
