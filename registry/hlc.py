"""Positions of CockroachDB: hybrid logical clock (HLC) timestamps as ordered 64-bit integers.

A timestamp is written ``1700000000123456789.0000000042``: nanoseconds of the wall clock since 1970, and a logical
counter, which counts what happened at the same nanosecond. A position is the wall clock's nanoseconds alone: they need
61 bits until 2043 and fit 63 bits until 2262, while a counter of 31 bits does not fit beside them, and no small part
of it is safe: where the clocks of two nodes differ, it counts to thousands.

So positions keep the order of timestamps, but not always their difference. Commits of the same nanosecond are common:
the source gives them positions one after the other (`astha.sources.cockroachdb.decode`), and the nanosecond as their
number. Snapshots don't divide them: one is read at the *last* timestamp of a nanosecond, so it contains all of its
commits or none. See docs/decisions/0036-cockroachdb-registry.md.
"""

from __future__ import annotations

import re

from registry.errors import Invalid
from registry.position import Position

LAST_LOGICAL = 2**31 - 1
"""The largest logical counter: it is a signed 32-bit integer."""

_LAST_WALL = 2**63 - 1
_TIMESTAMP = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,10}))?\??")  # older servers mark times ahead of the clock with "?"


def parse_timestamp(timestamp: str) -> tuple[int, int]:
    """Returns the nanoseconds and the logical counter. Raises Invalid for anything that is no HLC timestamp."""
    found = _TIMESTAMP.fullmatch(timestamp)
    # cluster_logical_timestamp() is a decimal, whose text may lack trailing zeros: .1 is the counter 1000000000.
    wall, logical = (int(found[1]), int((found[2] or "0").ljust(10, "0"))) if found else (-1, 0)
    if not 0 <= wall <= _LAST_WALL or logical > LAST_LOGICAL:
        raise Invalid("timestamp", timestamp, "is not an HLC timestamp, such as 1700000000123456789.0000000001")
    return wall, logical


def position_of(timestamp: str) -> Position:
    """Returns the position of a commit. Positions of earlier commits are never greater."""
    return Position(parse_timestamp(timestamp)[0])


def resolved_position(timestamp: str) -> Position:
    """Returns the last position that is complete when everything up to this timestamp has been seen."""
    wall, logical = parse_timestamp(timestamp)
    return Position(wall if logical == LAST_LOGICAL else wall - 1)


def timestamp_of(position: Position) -> str:
    """Returns the last timestamp of a position: a read at it, or a cursor at it, has all of the position's commits."""
    if not 0 <= position <= _LAST_WALL:
        raise Invalid("position", position, "is not a position of CockroachDB: nanoseconds since 1970")
    return f"{position}.{LAST_LOGICAL:010d}"
