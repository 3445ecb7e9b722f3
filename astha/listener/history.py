"""Samples of the daemon's status: rates between two of them, and an hour of history in bounded memory."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

_INTERVAL_MS = 5_000
_SAMPLES = 720
_MAX_COMPONENTS = 64
_MAX_PROBLEMS = 20


class ComponentSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    events_per_s: float
    failures_per_s: float
    lag_s: float | None
    queued: int


class HistorySample(msgspec.Struct, frozen=True):
    at: int  # UTC epoch milliseconds
    source_lag: int | None
    components: dict[str, ComponentSample]


class _Counts(msgspec.Struct, frozen=True, gc=False):
    delivered: int
    failures: int


class History:
    def __init__(self) -> None:
        self.samples: deque[HistorySample] = deque(maxlen=_SAMPLES)
        self._last: tuple[int, dict[str, _Counts]] | None = None
        self._kept: tuple[int, dict[str, _Counts]] | None = None

    def add(self, status: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """Returns the status with the time, with rates since the last one, and with few of many problems."""
        counts = {one["name"]: _counts(one) for one in status["components"][:_MAX_COMPONENTS]}
        shown = {**status, "at": now_ms, "components": [_shortened(one) for one in status["components"]]}
        for component in shown["components"]:
            rate, failures = _rates(self._last, counts, component["name"], now_ms)
            component["events_per_s"], component["failures_per_s"] = rate, failures
        self._last = (now_ms, counts)
        if self._kept is None or now_ms - self._kept[0] >= _INTERVAL_MS:
            self._keep(status, counts, now_ms)
        return shown

    def _keep(self, status: dict[str, Any], counts: dict[str, _Counts], now_ms: int) -> None:
        components = {}
        for one in status["components"][:_MAX_COMPONENTS]:
            rates = _rates(self._kept, counts, one["name"], now_ms)
            components[one["name"]] = ComponentSample(*rates, one["lag_s"], one["queue"]["events"])
        self.samples.append(HistorySample(now_ms, status["source"]["lag"], components))
        self._kept = (now_ms, counts)


def _counts(component: dict[str, Any]) -> _Counts:
    counts = component["counts"]
    delivered = sum(number for by_operation in counts["delivered"].values() for number in by_operation.values())
    return _Counts(delivered, counts["failures"])


def _shortened(component: dict[str, Any]) -> dict[str, Any]:
    problems = component["problems"]
    return {**component, "problems": problems[:_MAX_PROBLEMS], "problem_count": len(problems)}


def _rates(
    before: tuple[int, dict[str, _Counts]] | None, counts: dict[str, _Counts], name: str, now_ms: int
) -> tuple[float, float]:
    """Counters begin again at 0 when a daemon begins to lead: there is no rate then."""
    old, new = None if before is None else before[1].get(name), counts.get(name)
    if before is None or old is None or new is None or now_ms <= before[0]:
        return 0.0, 0.0
    seconds = (now_ms - before[0]) / 1000
    return (
        round(max(0, new.delivered - old.delivered) / seconds, 2),
        round(max(0, new.failures - old.failures) / seconds, 2),
    )
