"""The current problems of a component, by subject: recorded when it fails, removed when it works again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from astha.subscribers import Problem
from registry.clock import Clock

Key: TypeAlias = tuple[str | int | None, ...]


class ProblemTracker:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[Key, Problem] = {}

    def failed(self, key: Key, subject: str, reason: str, *, next_try: int | None = None) -> None:
        known = self._known.get(key)
        since, attempts = (self._clock.now_ms(), 0) if known is None else (known.since, known.attempts)
        self._known[key] = Problem(subject, reason, since, attempts + 1, next_try)

    def worked(self, key: Key) -> None:
        self._known.pop(key, None)

    def get(self, key: Key) -> Problem | None:
        return self._known.get(key)

    def keep(self, wanted: Callable[[Key], bool]) -> None:
        """Removes the others."""
        self._known = {key: problem for key, problem in self._known.items() if wanted(key)}

    def listed(self) -> list[Problem]:
        return list(self._known.values())
