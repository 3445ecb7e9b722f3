"""Takes the place of a component whose code is unusable: its lane is shown as broken, and nothing is delivered."""

from __future__ import annotations

from typing import Never

from astha.errors import ComponentError
from astha.events import Event
from registry.contract import ConsistentRead
from registry.models import Row


class BrokenComponent:
    def __init__(self, tables: frozenset[str], problem: ComponentError) -> None:
        self._tables = tables
        self.problem = problem

    @property
    def subscribed_tables(self) -> frozenset[str]:
        return self._tables

    @property
    def reason(self) -> str:
        return f"can't be loaded: {self.problem} -> {self.problem.remedy}; then restart the daemon"

    async def on_event(self, event: Event[Row]) -> None:
        self._refuse()

    async def on_health(self) -> bool:
        return False

    async def on_refresh(self, snapshot: ConsistentRead) -> None:
        self._refuse()

    def _refuse(self) -> Never:
        raise self.problem
