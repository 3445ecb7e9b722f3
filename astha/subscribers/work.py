"""Background work of a component, reported so that an operator sees whether it makes progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import msgspec


class Work(msgspec.Struct, frozen=True):
    """One background job. Without progress for longer than `limit_s` it counts as stuck."""

    name: str  # shown to operators: "merge of db.orders day=1"
    idle_s: float  # since it began, or last made progress
    limit_s: float

    @property
    def stuck(self) -> bool:
        return self.idle_s > self.limit_s


@runtime_checkable
class ReportsWork(Protocol):
    """Optional: called for each readiness check. Must not block."""

    def work(self) -> Iterable[Work]: ...
