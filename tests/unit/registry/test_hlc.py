from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import Invalid
from registry.hlc import LAST_LOGICAL, parse_timestamp, position_of, resolved_position, timestamp_of
from registry.position import Position, TimestampVisibility

NOW = 1_763_500_000_123_456_789
TIMES = st.tuples(st.integers(NOW, NOW + 3) | st.integers(0, 2**63 - 1), st.integers(0, LAST_LOGICAL))


def text(time: tuple[int, int]) -> str:
    return f"{time[0]}.{time[1]:010d}"


@given(TIMES, TIMES)
def test_positions_keep_the_order_of_timestamps(one: tuple[int, int], other: tuple[int, int]) -> None:
    first, second = sorted((one, other))
    assert position_of(text(first)) <= position_of(text(second)) < 2**63
    assert (position_of(text(first)) == position_of(text(second))) is (first[0] == second[0])


@given(TIMES, TIMES)
def test_a_read_at_a_position_contains_all_of_its_commits_or_none(
    read: tuple[int, int], commit: tuple[int, int]
) -> None:
    position = position_of(text(read))
    contained = commit <= parse_timestamp(timestamp_of(position))
    assert contained is TimestampVisibility(position).contains(commit[0], position_of(text(commit)))


@given(TIMES, TIMES)
def test_no_commit_of_a_resolved_position_is_still_to_come(mark: tuple[int, int], commit: tuple[int, int]) -> None:
    if commit > mark:
        assert position_of(text(commit)) > resolved_position(text(mark))


def test_the_last_timestamp_of_a_position_resolves_it() -> None:
    assert resolved_position(timestamp_of(Position(NOW))) == NOW
    assert resolved_position(f"{NOW}.0000000000") == NOW - 1


def test_a_decimal_may_lack_trailing_zeros_and_an_old_server_marks_future_times() -> None:
    assert parse_timestamp(f"{NOW}.1") == (NOW, 1_000_000_000)
    assert parse_timestamp(f"{NOW}.0000000012?") == (NOW, 12)
    assert parse_timestamp(str(NOW)) == (NOW, 0)


@pytest.mark.parametrize("bad", ["", "now", "-1.0000000000", f"{2**63}.0000000000", "1.2147483648", "1e18", "1.2.3"])
def test_anything_else_is_refused(bad: str) -> None:
    with pytest.raises(Invalid, match="is not an HLC timestamp"):
        position_of(bad)


@pytest.mark.parametrize("bad", [-1, 2**63])
def test_a_position_that_is_no_time_is_refused(bad: int) -> None:
    with pytest.raises(Invalid, match="nanoseconds since 1970"):
        timestamp_of(Position(bad))
