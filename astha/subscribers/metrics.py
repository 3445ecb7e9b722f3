"""Metrics of a component, beside those that the daemon keeps for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, runtime_checkable

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """Exported as ``astha_<component>_<name>``. A counter never decreases. Those of one name differ in labels."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = {}
    kind: Literal["counter", "gauge"] = "gauge"


@runtime_checkable
class ReportsMetrics(Protocol):
    """Optional: called for each scrape of the daemon's metrics. Must not block."""

    def metrics(self) -> Iterable[Metric]: ...
