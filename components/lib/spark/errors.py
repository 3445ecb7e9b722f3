"""What a merge on Spark may raise, beside what the merge itself does (MergeFailed, StorageError).

SparkError
|-- SessionProblem   no session can be had, or its workers are unfit   -> fix what the message names
|-- SessionLost      the JVM or the server went away                   -> retry: the next call gets a new session
|-- OutOfMemory      a heap, a worker or the whole machine was full    -> a smaller group
|-- JobFailed        the job failed, and nobody knows the reason       -> retry a few times, then report it
|   `-- MergeCrashed the worker crashed, or the merge raised something -> look at each of its files alone
|                    that it does not know
|-- MergeTimeout     it took longer than it may, and was ended         -> look at each of its files alone
`-- StillWriting     it was cancelled, and may write nevertheless      -> leave its intents to the cleaner

``settled`` says whether all that the task may have written is written: then its outputs can be removed for good.
Otherwise a worker may still be at work, or a request that it has sent may still be carried out.
"""

from __future__ import annotations

from astha.errors import AsthaError

__all__ = [
    "JobFailed",
    "MergeCrashed",
    "MergeTimeout",
    "OutOfMemory",
    "SessionLost",
    "SessionProblem",
    "SparkError",
    "StillWriting",
]


class SparkError(AsthaError):
    """Base of all; the message names the thing, the value and the way out."""

    settled = True

    def unsettled(self) -> SparkError:
        self.settled = False
        return self


class SessionProblem(SparkError):
    pass


class SessionLost(SparkError):
    pass


class OutOfMemory(SparkError):
    pass


class JobFailed(SparkError):
    pass


class MergeCrashed(JobFailed):
    pass


class MergeTimeout(SparkError):
    pass


class StillWriting(SparkError):
    settled = False
