"""Bounds are never narrower than their filters."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from components.lib.streams.pushdown import UNBOUNDED
from registry.models import Segment

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.mark.parametrize(
    ("filters", "start", "stop"),
    [
        ([], {0: 5, 1: 5}, {0: 90, 1: 90}),
        ([EqualTo(("partition",), 1)], {1: 5}, {1: 90}),
        ([In(("partition",), (0, 7))], {0: 5, 1: 5}, {0: 90, 1: 90}),
        ([EqualTo(("offset",), 50)], {0: 50, 1: 50}, {0: 51, 1: 51}),
        ([GreaterThan(("offset",), 10), LessThan(("offset",), 20)], {0: 10, 1: 10}, {0: 21, 1: 21}),
        ([GreaterThanOrEqual(("offset",), 1), LessThanOrEqual(("offset",), 1_000)], {0: 5, 1: 5}, {0: 90, 1: 90}),
        ([EqualTo(("offset",), None), In(("offset",), ()), EqualTo(("offset",), True)], {0: 5, 1: 5}, {0: 90, 1: 90}),
        ([EqualTo(("value", "offset"), 50), IsNotNull(("offset",))], {0: 5, 1: 5}, {0: 90, 1: 90}),
    ],
)
def test_partitions_and_offsets(filters: list[Filter], start: dict[int, int], stop: dict[int, int]) -> None:
    assert UNBOUNDED.narrowed(filters).clip({0: 5, 1: 5}, {0: 90, 1: 90}) == (start, stop)


@pytest.mark.parametrize(
    ("each", "first", "last", "held"),
    [
        (GreaterThan(("timestamp",), NOON), NOON_MS - 9_000, NOON_MS - 5_000, False),
        (GreaterThan(("timestamp",), NOON), NOON_MS - 9_000, NOON_MS + 1, True),
        (LessThan(("timestamp",), NOON), NOON_MS + 5_000, NOON_MS + 9_000, False),
        (LessThan(("timestamp",), NOON), NOON_MS - 1, NOON_MS + 9_000, True),
        (EqualTo(("timestamp",), NOON), NOON_MS, NOON_MS, True),
        (GreaterThan(("timestamp",), NOON.replace(tzinfo=None)), 0, 1, True),
        (GreaterThan(("timestamp",), NOON), None, None, True),
    ],
)
def test_times(each: Filter, first: int | None, last: int | None, held: bool) -> None:
    segment = Segment(1, "t", 0, 0, 9, 10, 100, "b", "k", 0, 1, first, last, None)
    assert UNBOUNDED.narrowed([each]).may_contain(segment) is held
