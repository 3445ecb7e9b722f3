"""Hours of the day in which no job begins."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from components.lib.lake.table_properties import PolicyProblem

_WINDOW = re.compile(r"(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)")
_DAY = 24 * 60


class QuietHours(msgspec.Struct, frozen=True):
    """Windows in minutes of the day, end exclusive. A window that ends before it begins passes midnight."""

    windows: tuple[tuple[int, int], ...]
    zone: str = "UTC"

    def until_ms(self, now_ms: int) -> int | None:
        """Returns when the quiet hours end, or None outside of them."""
        zone = _zone(self.zone)
        here = datetime.fromtimestamp(now_ms / 1000, zone)
        minute = here.hour * 60 + here.minute
        if not self._covers(minute):
            return None
        away = next(away for away in range(1, _DAY + 1) if not self._covers((minute + away) % _DAY))
        wall = here.replace(second=0, microsecond=0, tzinfo=None) + timedelta(minutes=away)
        # Where clocks are set back, the end may lie in the past: then ask again in a minute.
        return max(int(wall.replace(tzinfo=zone).timestamp() * 1000), now_ms + 60_000)

    def _covers(self, minute: int) -> bool:
        return any(
            since <= minute < until if since < until else minute >= since or minute < until
            for since, until in self.windows
        )

    def __str__(self) -> str:
        listed = ", ".join(f"{a // 60:02}:{a % 60:02}-{b // 60:02}:{b % 60:02}" for a, b in self.windows)
        return f"{listed} {self.zone}"


def read_quiet_hours(name: str, text: str) -> QuietHours:
    """Reads ``22:00-06:00`` or ``08:00-12:00, 13:00-18:00 Europe/Berlin``; UTC without a zone."""
    hours, _, last = text.rpartition(" ")
    zone = last if hours and not _WINDOW.search(last) and not last.rstrip(",").endswith("-") else "UTC"
    written = hours if zone != "UTC" or last == "UTC" else text
    windows: list[tuple[int, int]] = []
    for part in written.split(","):
        found = _WINDOW.fullmatch(part.strip())
        numbers = [int(number) for number in found.groups()] if found else []
        if not numbers or numbers[0] > 23 or numbers[2] > 24 or max(numbers[1], numbers[3]) > 59:
            raise _problem(name, text)
        since, until = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
        if since == until or until > _DAY:
            raise _problem(name, text)
        windows.append((since, until))
    try:
        _zone(zone)
    except (ValueError, OSError, KeyError) as error:  # KeyError: zoneinfo's own is one
        raise PolicyProblem(f"{name} = {text!r}: there is no time zone {zone!r} on this machine") from error
    made = QuietHours(tuple(windows), zone)
    if all(made._covers(minute) for minute in range(_DAY)):
        raise PolicyProblem(
            f"{name} = {text!r}: leaves no time for compaction; compaction.enabled = false turns it off"
        )
    return made


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def _problem(name: str, text: str) -> PolicyProblem:
    return PolicyProblem(
        f"{name} = {text!r}: write 22:00-06:00 (UTC), or 22:00-06:00 Europe/Berlin; separate several with commas"
    )
