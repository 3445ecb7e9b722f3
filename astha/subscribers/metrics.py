"""Numbers that a component wants to show beside those that the daemon counts for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, runtime_checkable

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """Shown as ``astha_<component>_<name>``. A counter only ever grows. Those of one name differ in their labels."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = {}
    kind: Literal["counter", "gauge"] = "gauge"


@runtime_checkable
class ReportsMetrics(Protocol):
    """Optional: asked whenever somebody reads the daemon's metrics. Must neither wait nor take long."""

    def metrics(self) -> Iterable[Metric]: ...
