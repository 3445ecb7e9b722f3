"""Keys as attributes of CloudEvents, whose strings exclude control characters and Unicode's noncharacters."""

from __future__ import annotations

import re

_PLANES = "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
_EXCLUDED = re.compile(f"[\x7f-\x9f\ufdd0-\ufdef{_PLANES}]")


def attribute_text(key: bytes) -> bytes:
    """Returns JSON with the same value, in which the excluded characters are escaped. Those below U+0020 always are."""
    text = key.decode()
    return key if text.isprintable() else _EXCLUDED.sub(_escape, text).encode()


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
