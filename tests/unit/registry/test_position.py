from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.position import AnySnapshotVisibility, Position, SequenceVisibility, TimestampVisibility, XidVisibility

EPOCH = 2**32


def test_a_sequence_contains_positions_up_to_it() -> None:
    place = SequenceVisibility(Position(10))
    assert [place.contains(0, Position(number)) for number in (1, 10, 11)] == [True, True, False]


def test_a_snapshot_is_parsed() -> None:
    assert XidVisibility.parse("5:9:5,7") == XidVisibility(9, frozenset({5, 7}))
    assert XidVisibility.parse("9:9:") == XidVisibility(9, frozenset())
    assert XidVisibility.parse(f"{EPOCH - 1}:{EPOCH + 5}:{EPOCH - 1}") == XidVisibility(
        EPOCH + 5, frozenset({EPOCH - 1})
    )


@pytest.mark.parametrize(
    ("transaction", "contained"),
    [(3, True), (5, False), (6, True), (7, False), (8, True), (9, False), (10, False)],
)
def test_running_and_later_transactions_are_not_contained(transaction: int, contained: bool) -> None:
    assert XidVisibility.parse("5:9:5,7").contains(transaction, Position(0)) is contained


@pytest.mark.parametrize("epoch", [1, 2, 3, 1_000])
def test_the_stream_carries_32_bits(epoch: int) -> None:
    """Around the point where they wrap, on both sides of the snapshot."""
    wrap = epoch * EPOCH
    place = XidVisibility(wrap + 5, frozenset({wrap - 2, wrap + 3}))
    expected = {
        wrap - 1_000: True, wrap - 3: True, wrap - 2: False, wrap - 1: True,
        wrap + 3: False, wrap + 4: True, wrap + 5: False, wrap + 1_000: False,
    }  # fmt: skip
    assert {xid: place.contains(xid % EPOCH, Position(0)) for xid in expected} == expected
    late = XidVisibility(wrap - 5, frozenset())
    assert late.contains((wrap - 6) % EPOCH, Position(0))
    assert not late.contains((wrap - 5) % EPOCH, Position(0))
    assert not late.contains((wrap + 3) % EPOCH, Position(0))


@given(st.integers(3, 2**50), st.integers(-(2**31) + 1, 2**31 - 1))
def test_a_32_bit_id_is_widened_to_the_nearest_64_bit_id(xmax: int, distance: int) -> None:
    xid = xmax + distance
    if xid >= 3:
        assert XidVisibility(xmax, frozenset()).contains(xid % EPOCH, Position(0)) is (xid < xmax)
        assert XidVisibility(xmax, frozenset({xid})).contains(xid % EPOCH, Position(0)) is False


def test_a_timestamp_contains_positions_up_to_it() -> None:
    place = TimestampVisibility(Position(1_763_500_000_123_456_789))
    assert place.contains(place.last, Position(place.last + 3)), "one of several commits of that nanosecond"
    assert not place.contains(place.last + 1, Position(place.last + 1))


@pytest.mark.parametrize(
    "visibility",
    [SequenceVisibility(Position(7)), TimestampVisibility(Position(7)), XidVisibility(7, frozenset({5}))],
)
def test_a_recorded_visibility_keeps_its_kind(visibility: AnySnapshotVisibility) -> None:
    assert msgspec.json.decode(msgspec.json.encode(visibility), type=AnySnapshotVisibility) == visibility
