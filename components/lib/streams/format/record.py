"""A record, as it is read."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Header: TypeAlias = tuple[str, bytes | None]


class Record(msgspec.Struct, frozen=True):
    """`timestamp` is in UTC epoch milliseconds. A value of None is a tombstone."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
