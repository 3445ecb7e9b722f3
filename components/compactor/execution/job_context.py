"""The steps of a job by name, so that a test can hold, kill or overtake it between any two of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeAlias


class Step(StrEnum):
    """Each is told just before it is taken."""

    PLAN = "plan"
    CLAIM = "claim"
    INTENTS = "intents"
    MERGE = "merge"
    COMPARE = "compare"
    SWAP = "swap"
    FINISH = "finish"


Reached: TypeAlias = Callable[[Step], Awaitable[None]]


async def go_on(_step: Step) -> None:
    """What is done at a step outside of tests."""
