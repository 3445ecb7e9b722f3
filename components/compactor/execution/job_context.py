"""What the jobs of a compactor share: where they work, their limits, and their steps by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeAlias

import msgspec

from astha.clock import LoopClock
from astha.tracing import NOT_TRACED, Tracer
from components.compactor.spark.executor_protocol import Executor
from components.lib.lake.storage.objects import Objects
from registry.contract import MetadataStore


class Step(StrEnum):
    """The steps of a job. A test can pause, kill or overtake it before each of them."""

    PLAN = "plan"
    CLAIM = "claim"
    INTENTS = "intents"
    MERGE = "merge"
    COMPARE = "compare"
    SWAP = "swap"
    FINISH = "finish"


StepHook: TypeAlias = Callable[[Step], Awaitable[None]]
"""Called just before a step is taken."""


async def ignore_step(_step: Step) -> None:
    """The hook outside of tests."""


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_s: float = 1.0
    stale_after_s: float = 30.0  # without a heartbeat, before other compactors take over
    attempts: int = 3  # per group, when the session dies or storage does not answer
    max_replans: int = 5  # per group, when inputs are removed meanwhile
    parallel_groups: int = 1
    retry_wait_s: float = 1.0  # doubles
    merge_timeout_s: float = 600.0  # per group, and a second more per MiB

    def merge_limit_s(self, size_bytes: int) -> float:
        return self.merge_timeout_s + size_bytes / (1 << 20)

    def stuck_after_s(self, size_bytes: int) -> float:
        """Twice the limit, because a merge may wait for a free worker, and some time for the swap."""
        return 2 * self.merge_limit_s(size_bytes) + 60.0


class JobContext(msgspec.Struct, frozen=True, kw_only=True):
    store: MetadataStore
    executor: Executor
    objects: Objects
    clock: LoopClock
    owner: str
    limits: JobLimits = JobLimits()
    on_step: StepHook = ignore_step
    tracer: Tracer = NOT_TRACED
