"""What work on Spark raises, besides the errors of the work itself.

SparkError
|-- SessionProblem    no session can be had, or its workers are unfit   -> fix what the message names
|-- SessionLost       the JVM or the server went away                   -> retry: the next call gets a new session
|-- OutOfMemory       a heap, a worker or the whole machine was full    -> give a task less to do
|-- JobFailed         the job failed for a reason that is not known     -> retry a few times, then report it
|   `-- WorkerCrashed the worker crashed, or its task raised an error   -> look at each input of the task alone
|                     that is not ours
|-- TaskTimeout       the task exceeded its time limit and was ended    -> look at each input of the task alone
`-- StillWriting      the task was cancelled and may still write        -> leave its upload intents to the cleaner

``settled``: the task writes nothing any more, so its outputs can be removed for good. Otherwise a worker may still be
running, or a request that it sent may still be carried out.
"""

from __future__ import annotations

from astha.errors import AsthaError

__all__ = [
    "JobFailed",
    "OutOfMemory",
    "SessionLost",
    "SessionProblem",
    "SparkError",
    "StillWriting",
    "TaskTimeout",
    "WorkerCrashed",
]


class SparkError(AsthaError):
    """Base of all. The message names the thing, the value and the way out."""

    settled = True


class SessionProblem(SparkError):
    pass


class SessionLost(SparkError):
    pass


class OutOfMemory(SparkError):
    pass


class JobFailed(SparkError):
    pass


class WorkerCrashed(JobFailed):
    pass


class TaskTimeout(SparkError):
    pass


class StillWriting(SparkError):
    settled = False
