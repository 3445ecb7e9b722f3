"""Offset specifications: ``earliest``, ``latest``, an offset, a time, or a duration ago."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from astha.quantities import parse_duration_ms
from components.lib.streams.offsets import boundary_offsets

if TYPE_CHECKING:
    from components.lib.streams.reader.reader import Reader


class AtTimestamp(msgspec.Struct, frozen=True):
    """The first record with this timestamp or a later one."""

    timestamp: int


OffsetSpec: TypeAlias = Literal["earliest", "latest"] | int | AtTimestamp


_BOUNDARIES: dict[str, OffsetSpec] = {"earliest": "earliest", "latest": "latest"}


def parse_offset_spec(written: str) -> OffsetSpec:
    """Raises ValueError, which lists the valid forms."""
    text = written.strip()
    if text in _BOUNDARIES:
        return _BOUNDARIES[text]
    if text.isdecimal():
        if len(text) > 18:
            raise ValueError(f"{text[:20]}... is beyond every offset")
        return int(text)
    ago_ms = parse_duration_ms(text.removeprefix("-"))
    if text.startswith("-") and ago_ms is not None:
        return AtTimestamp(max(0, int(datetime.now(UTC).timestamp() * 1000) - ago_ms))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{written!r}: write earliest, latest, an offset, a time such as 2026-05-01T12:00Z, or -15m for 15 minutes "
            "ago"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return AtTimestamp(max(0, int(time.timestamp() * 1000)))


async def resolve_offsets(reader: Reader, topic: str, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
    """Returns the offset per partition. A time after the last record is the partition's end."""
    if isinstance(spec, int):
        return dict.fromkeys(partitions, spec)
    store = reader.change_feed.store
    if not isinstance(spec, AtTimestamp):
        return await boundary_offsets(store, topic, partitions, spec)
    ends: Mapping[int, int] = await boundary_offsets(store, topic, partitions, "latest")
    found = {}
    for number in partitions:
        offset = await reader.offset_for_timestamp(topic, number, spec.timestamp)
        found[number] = ends[number] if offset is None else offset
    return found
