"""Names are given out once, after their intents are recorded, and not when the intents may be stale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from components.lib.streams.writer.object_names import ObjectNames
from registry.contract import Files
from tests.doubles.clock import ManualClock

FRESH_S = 600.0


class Intents:
    def __init__(self) -> None:
        self.recorded: list[str] = []
        self.completed: list[str] = []

    async def record_intents(self, paths: Sequence[str], *, purpose: str, owner: str) -> None:
        assert (purpose, owner) == ("segments", "me")
        self.recorded += paths

    async def complete_intents(self, paths: Sequence[str]) -> None:
        self.completed += paths


def names_of(intents: Intents, clock: ManualClock) -> ObjectNames:
    return ObjectNames(cast("Files", intents), clock, "file:///lake", "me", max_batch=16, fresh_s=FRESH_S)


async def test_names_are_preallocated_and_released() -> None:
    intents = Intents()
    names = names_of(intents, ManualClock())
    taken = [await names.take() for _ in range(20)]
    assert len(set(taken)) == 20
    assert set(taken) < set(intents.recorded)
    await names.release_unused()
    assert sorted(intents.completed + taken) == sorted(intents.recorded)


async def test_after_a_long_pause_new_names_are_recorded() -> None:
    intents, clock = Intents(), ManualClock()
    names = names_of(intents, clock)
    for _ in range(3):
        await names.take()
    clock.advance(590_000)
    names.renewed(clock.monotonic())
    clock.advance(590_000)
    before = list(intents.recorded)
    assert await names.take() in before
    clock.advance(20_000)
    assert await names.take() not in before
    await names.release_unused()
    assert len(set(intents.completed)) == len(intents.recorded) - 5
