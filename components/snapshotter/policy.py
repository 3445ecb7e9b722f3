"""What a table's properties say about its snapshots.

snapshot.every        1d       one a day, if anything has changed         (automatic ones are off unless asked for)
snapshot.after-rows   1000000  after so many inserted rows, bytes or files since the last
snapshot.after-bytes  10GiB
snapshot.after-files  1000
snapshot.keep         30       the newest so many stay                    (none given: all of them stay)
snapshot.keep-for     90d      those that are younger stay
snapshot.hold         q?-*,x   tags that stay whatever `keep` says
snapshot.grace        1d       between the end of a file or snapshot and its deletion
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

import msgspec

from astha.errors import AsthaError
from registry.documents import JsonValue

PREFIX = "snapshot."
DAY_MS = 86_400_000

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": DAY_MS, "w": 7 * DAY_MS}
_UNITS_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_QUANTITY = re.compile(r"(\d+)\s*([a-z]*)", re.IGNORECASE)


class PolicyProblem(AsthaError):
    """A property that can't be read; the message names it and says what could stand there."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    every_ms: int | None = None
    after_rows: int | None = None
    after_bytes: int | None = None
    after_files: int | None = None
    keep: int | None = None
    keep_for_ms: int | None = None
    hold: tuple[str, ...] = ()
    grace_ms: int = DAY_MS

    @property
    def automatic(self) -> bool:
        return self.every_ms is not None or self.by_size

    @property
    def by_size(self) -> bool:
        return any(limit is not None for limit in (self.after_rows, self.after_bytes, self.after_files))

    @property
    def expires(self) -> bool:
        return self.keep is not None or self.keep_for_ms is not None

    def holds(self, tag: str | None) -> bool:
        return tag is not None and any(fnmatchcase(tag, pattern) for pattern in self.hold)


def read_policy(properties: JsonValue, defaults: Policy | None = None) -> Policy:
    """Of a table's properties. PolicyProblem for the first of ours that can't be read, or that nobody knows."""
    found: dict[str, object] = {}
    for name, value in (properties if isinstance(properties, Mapping) else {}).items():
        if name.startswith(PREFIX) and value not in (None, ""):
            known = _PROPERTIES.get(name.removeprefix(PREFIX))
            if known is None:
                raise PolicyProblem(f"{name}: there is no such property; {', '.join(map(PREFIX.__add__, _PROPERTIES))}")
            field, read = known
            found[field] = read(name, str(value).strip())
    return msgspec.structs.replace(defaults or Policy(), **found)


def _duration_ms(name: str, text: str) -> int:
    number, unit = _quantity(text)
    if number is None or unit not in _UNITS_MS:
        raise PolicyProblem(f"{name} = {text!r}: write a duration such as 30m, 12h, 7d")
    return number * _UNITS_MS[unit]


def _some_time_ms(name: str, text: str) -> int:
    found = _duration_ms(name, text)
    if found == 0:
        raise PolicyProblem(f"{name} = {text!r}: must be longer than nothing")
    return found


def _size(name: str, text: str) -> int:
    number, unit = _quantity(text)
    if not number or unit not in _UNITS_BYTES:
        raise PolicyProblem(f"{name} = {text!r}: write a size such as 500MB, 10GiB")
    return number * _UNITS_BYTES[unit]


def _count(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise PolicyProblem(f"{name} = {text!r}: write a number of 1 or more")
    return int(text)


def _patterns(_name: str, text: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in text.split(",") if pattern.strip())


def _quantity(text: str) -> tuple[int | None, str]:
    found = _QUANTITY.fullmatch(text)
    return (None, "") if found is None else (int(found[1]), found[2].lower())


_PROPERTIES: Mapping[str, tuple[str, Callable[[str, str], object]]] = {
    "every": ("every_ms", _some_time_ms),
    "after-rows": ("after_rows", _count),
    "after-bytes": ("after_bytes", _size),
    "after-files": ("after_files", _count),
    "keep": ("keep", _count),
    "keep-for": ("keep_for_ms", _duration_ms),
    "hold": ("hold", _patterns),
    "grace": ("grace_ms", _duration_ms),
}
