"""Work that a component does in tasks of its own, so that others can see whether it makes progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import msgspec


class Work(msgspec.Struct, frozen=True):
    """Something under way in the background. Without progress for longer than `limit_s` it counts as stuck."""

    name: str  # for a person: "merge of db.orders day=1"
    idle_s: float  # since it began, or last made progress
    limit_s: float

    @property
    def stuck(self) -> bool:
        return self.idle_s > self.limit_s


@runtime_checkable
class ReportsWork(Protocol):
    """Optional: asked whenever readiness is. Must neither wait nor take long."""

    def work(self) -> Iterable[Work]: ...
