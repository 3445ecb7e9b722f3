"""Parameter types of command lines: durations, sizes and offset specifications."""

from __future__ import annotations

import click

from astha.quantities import parse_duration_ms, parse_size
from components.lib.streams.offset_spec import OffsetSpec, parse_offset_spec

_MAX_INT64 = (1 << 63) - 1  # the largest number in the registry


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
        if duration > _MAX_INT64:
            self.fail(f"{value!r} is longer than can be stored: write forever", param, ctx)
        return duration


class SizeParam(click.ParamType[int]):
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = parse_size(str(value))
        if found is None:
            self.fail(f"{value!r}: write a number of bytes, or 64KiB, 10MiB, 10MB, 1GiB", param, ctx)
        if found > _MAX_INT64:
            self.fail(f"{value!r} is more than can be stored", param, ctx)
        return found


class OffsetSpecParam(click.ParamType[OffsetSpec]):
    name = "offset"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> OffsetSpec:
        try:
            return parse_offset_spec(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
