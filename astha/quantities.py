"""Sizes and durations as users write and read them: one syntax for settings, table properties and command lines."""

from __future__ import annotations

import re

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_UNITS_BYTES = {
    "": 1, "b": 1,
    "kb": 1_000, "mb": 1_000**2, "gb": 1_000**3, "tb": 1_000**4,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9]{1,18})\s*([a-z]*)", re.IGNORECASE)
_SIZE_NAMES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATION_NAMES = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


def parse_size(text: str) -> int | None:
    """Returns bytes, or None if the text is not a size.

    KB, MB, GB, TB count in thousands; KiB, MiB, GiB, TiB in 1,024; K, M, G, T alone mean KiB, MiB, GiB, TiB.
    """
    return _parse(text, _UNITS_BYTES)


def parse_duration_ms(text: str) -> int | None:
    """Returns milliseconds, or None if the text is not a duration such as ``500ms``, ``30m``, ``12h`` or ``7d``."""
    return _parse(text, _UNITS_MS)


def format_size(size_bytes: int) -> str:
    amount, unit = float(size_bytes), 0
    while amount >= 1024 and unit < len(_SIZE_NAMES) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_SIZE_NAMES[unit]}" if unit else f"{size_bytes} bytes"


def format_duration(milliseconds: int) -> str:
    """Returns the largest unit that divides it: ``7 days``, ``1 hour``, ``1,500 ms``."""
    for name, length in _DURATION_NAMES:
        if milliseconds >= length and milliseconds % length == 0:
            number = milliseconds // length
            return f"{number:,} {name}{'' if number == 1 else 's'}"
    return f"{milliseconds:,} ms"


def _parse(text: str, units: dict[str, int]) -> int | None:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found[2].lower() not in units:
        return None
    return int(found[1]) * units[found[2].lower()]
