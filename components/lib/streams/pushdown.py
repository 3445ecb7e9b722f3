"""Filter pushdown: Spark's filters as bounds of what a scan reads.

Spark evaluates the filters again, so bounds may be too wide, never too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from registry.models import Segment

_MAX_INT64 = (1 << 63) - 1


class Interval(msgspec.Struct, frozen=True):
    """Both ends are inclusive."""

    low: int = 0
    high: int = _MAX_INT64

    def intersect(self, low: int | None, high: int | None) -> Interval:
        return Interval(
            self.low if low is None else max(self.low, low), self.high if high is None else min(self.high, high)
        )


class ScanBounds(msgspec.Struct, frozen=True):
    partition: Interval = Interval()
    offset: Interval = Interval()
    timestamp: Interval = Interval(-_MAX_INT64)  # milliseconds

    def narrowed(self, filters: Iterable[Filter]) -> ScanBounds:
        bounds = self
        for each in filters:
            column: tuple[str, ...] = getattr(each, "attribute", ())
            name = ".".join(column)
            if name in self.__struct_fields__:
                low, high = _limits(each)
                bounds = msgspec.structs.replace(bounds, **{name: getattr(bounds, name).intersect(low, high)})
        return bounds

    def may_contain(self, segment: Segment) -> bool:
        """Compares timestamps only: `clip` handles partitions and offsets."""
        too_early = segment.max_timestamp is not None and segment.max_timestamp < self.timestamp.low
        too_late = segment.min_timestamp is not None and segment.min_timestamp > self.timestamp.high
        return not too_early and not too_late

    def clip(self, start: dict[int, int], stop: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Returns start and stop offsets per remaining partition."""
        kept = [number for number in stop if self.partition.low <= number <= self.partition.high]
        return (
            {number: max(start.get(number, 0), self.offset.low) for number in kept},
            {number: min(stop[number], self.offset.high + 1) for number in kept},
        )


UNBOUNDED = ScanBounds()


def _limits(each: Filter) -> tuple[int | None, int | None]:
    match each:
        case EqualTo(_, value):
            return _floor(value), _ceiling(value)
        case In(_, values):
            known = [(_floor(value), _ceiling(value)) for value in values]
            if not known or any(low is None or high is None for low, high in known):
                return None, None
            return min(low for low, _ in known if low is not None), max(high for _, high in known if high is not None)
        case GreaterThan(_, value) | GreaterThanOrEqual(_, value):
            return _floor(value), None
        case LessThan(_, value) | LessThanOrEqual(_, value):
            return None, _ceiling(value)
        case _:
            return None, None


def _floor(value: object) -> int | None:
    """Returns None for unsupported types: then there is no bound."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return int(value.timestamp() * 1000) - 1
    return None


def _ceiling(value: object) -> int | None:
    floor = _floor(value)
    return floor + 2 if floor is not None and isinstance(value, datetime) else floor
