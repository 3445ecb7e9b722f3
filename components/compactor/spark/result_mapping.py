"""What an attempt's answer means to who asked for the merge."""

from __future__ import annotations

import pickle
from typing import Any

from astha.errors import AsthaError
from components.compactor.spark.messages import Outcome
from components.compactor.spark.worker_lease import Call
from components.lib.spark.error_mapping import UNFIT
from components.lib.spark.errors import JobFailed, MergeCrashed, OutOfMemory, SessionProblem, SparkError


def read_answer(data: bytes, call: Call) -> Any:
    """The result, or the error that the work raised itself, or a `SparkError`."""
    outcome = Outcome.opened(data)
    if outcome.end == "done":
        return pickle.loads(outcome.value)  # noqa: S301  (of our own workers)
    if outcome.end == "raised":
        raise _raised(outcome)
    raise _ended(outcome, call)


def _raised(outcome: Outcome) -> Exception:
    last = outcome.told.strip().rpartition("\n")[2]
    error = pickle.loads(outcome.value) if outcome.value else None  # noqa: S301  (likewise)
    if not isinstance(error, AsthaError):
        error = MergeCrashed(f"the merge failed in its worker: {last[:500]}")
    error.add_note(f"In the worker: {outcome.told}")
    return error


def _ended(outcome: Outcome, call: Call) -> SparkError:
    match outcome.end:
        case "memory":
            return OutOfMemory(f"the worker had not enough memory: {outcome.told}")
        case "unfit":
            return SessionProblem(f"a worker lacks something ({outcome.told}): {UNFIT}")
        case "unreachable":
            return SessionProblem(
                f"a worker can't reach this process ({outcome.told}): set 'host' to an address that workers reach, and"
                " 'port' to a port that is open to them"
            )
        case "refused" if call.dead and not call.doubtful:
            return OutOfMemory(f"{outcome.told}, most likely for the memory that it took")
        case "refused":
            return JobFailed(f"another attempt was not allowed: {outcome.told}")
        case _:
            return JobFailed("the worker was cut off from this process, and has stopped")
