"""What people write: times, sizes, durations, and places in a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import click
import msgspec

from astha.quantities import parse_duration_ms, parse_size
from components.lib.streams.offsets import boundary_offsets
from components.lib.streams.reader.reader import Reader

_MOST = (1 << 63) - 1  # of a number in the registry


class AtTimestamp(msgspec.Struct, frozen=True):
    """The first record that is as late or later."""

    timestamp: int


OffsetSpec: TypeAlias = Literal["earliest", "latest"] | int | AtTimestamp


_ENDS: dict[str, OffsetSpec] = {"earliest": "earliest", "latest": "latest"}


class DurationParam(click.ParamType[int | None]):
    """Milliseconds; None for `forever`."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        text = str(value).strip().lower()
        if text == "forever":
            return None
        duration = parse_duration_ms(text)
        if duration is None:
            self.fail(f"{value!r}: write 90s, 15m, 12h, 7d, 4w or forever", param, ctx)
        if duration > _MOST:
            self.fail(f"{value!r} is longer than can be stored: write forever", param, ctx)
        return duration


class SizeParam(click.ParamType[int]):
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = parse_size(str(value))
        if found is None:
            self.fail(f"{value!r}: write a number of bytes, or 64KiB, 10MiB, 10MB, 1GiB", param, ctx)
        if found > _MOST:
            self.fail(f"{value!r} is more than can be stored", param, ctx)
        return found


class OffsetSpecParam(click.ParamType[OffsetSpec]):
    name = "place"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> OffsetSpec:
        try:
            return parse_offset_spec(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_offset_spec(written: str) -> OffsetSpec:
    """ValueError says what to write."""
    text = written.strip()
    if text in _ENDS:
        return _ENDS[text]
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


async def offsets_at(reader: Reader, topic: str, partitions: Sequence[int], place: OffsetSpec) -> dict[int, int]:
    """Where that is in each partition. A time after the last record is the end."""
    if isinstance(place, int):
        return dict.fromkeys(partitions, place)
    store = reader.feed.store
    if not isinstance(place, AtTimestamp):
        return await boundary_offsets(store, topic, partitions, place)
    ends: Mapping[int, int] = await boundary_offsets(store, topic, partitions, "latest")
    found = {}
    for number in partitions:
        offset = await reader.offset_for_timestamp(topic, number, place.timestamp)
        found[number] = ends[number] if offset is None else offset
    return found
