"""A session of Spark, as the host sees it. Every call blocks, and is made in a thread."""

from __future__ import annotations

from typing import Protocol

import msgspec

from components.lib.spark.errors import SparkError


class Job(msgspec.Struct, frozen=True):
    """One job of one task."""

    name: str  # unique
    told: str  # for people, in Spark's UI
    order: bytes


class Session(Protocol):
    @property
    def pid(self) -> int | None:
        """The process whose descendants do the work; None if that is another machine's."""
        ...

    def start(self) -> None:
        """SessionProblem, and nothing of it left, if there is no session to be had."""
        ...

    def run(self, job: Job) -> bytes:
        """What `worker.attempt` answers to the order. Errors are for `explain`."""
        ...

    def cancel(self, job: Job) -> None:
        """Begun or not. Spark forgets the task at once; when its worker ends is told by the leash alone."""
        ...

    def ping(self) -> None:
        """An answer, or an error for `explain`."""
        ...

    def explain(self, error: Exception) -> SparkError:
        """What an error of these calls means."""
        ...

    def close(self, limit_s: float) -> None:
        """Dead or alive. Calls under way fail; a new session can be started in this process afterwards."""
        ...
