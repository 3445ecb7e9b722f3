"""What travels to a worker and back. Spark sees bytes: no name, path or secret shows in its UI, plans or logs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from astha.errors import AsthaError
from components.compactor.spark.worker_lease import TaskLease
from components.lib.spark.error_mapping import WORKER_NEEDS
from components.lib.spark.errors import JobFailed, OutOfMemory, SessionProblem, SparkError, WorkerCrashed

Work: TypeAlias = Callable[[Any], Any]
"""A function of one argument, which every worker can import by its name."""

ReplyStatus: TypeAlias = Literal["done", "raised", "memory", "unfit", "refused", "unreachable", "stopped"]


class TaskRequest(msgspec.Struct, frozen=True):
    work: bytes  # the pickled function and its argument
    token: str  # of the task's lease
    lease_address: tuple[str, int] | None  # of the lease server; None if workers can't reach it
    grace_s: float  # between the request to stop and the end of the process
    limit_s: float | None = None  # after which, and some time more, the kernel ends the worker

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> TaskRequest:
        return msgspec.msgpack.decode(data, type=cls)


class TaskReply(msgspec.Struct, frozen=True):
    """How one attempt ended. An attempt that can report its failure replies with it: if the Spark task failed, Spark
    would only run it again.
    """

    status: ReplyStatus
    value: bytes = b""  # the pickled result, or the pickled error
    detail: str = ""

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> TaskReply:
        return msgspec.msgpack.decode(data, type=cls)


def pack(work: Work, argument: object) -> bytes:
    return pickle.dumps((work, argument), protocol=5)


def unpack(data: bytes) -> tuple[Work, object]:
    work, argument = pickle.loads(data)  # noqa: S301  (from our own driver, by way of Spark)
    return work, argument


def result_of(data: bytes, lease: TaskLease) -> Any:
    """Returns the result in an encoded reply. Raises the error of the work itself, or a `SparkError`."""
    reply = TaskReply.decode(data)
    if reply.status == "done":
        return pickle.loads(reply.value)  # noqa: S301  (from our own workers)
    if reply.status == "raised":
        raise _raised(reply)
    raise _failed(reply, lease)


def _raised(reply: TaskReply) -> Exception:
    last_line = reply.detail.strip().rpartition("\n")[2]
    error = pickle.loads(reply.value) if reply.value else None  # noqa: S301  (likewise)
    if not isinstance(error, AsthaError):
        error = WorkerCrashed(f"the merge failed in its worker: {last_line[:500]}")
    error.add_note(f"In the worker: {reply.detail}")
    return error


def _failed(reply: TaskReply, lease: TaskLease) -> SparkError:
    match reply.status:
        case "memory":
            return OutOfMemory(f"the worker had not enough memory: {reply.detail}")
        case "unfit":
            return SessionProblem(f"a worker lacks something ({reply.detail}): {WORKER_NEEDS}")
        case "unreachable":
            return SessionProblem(
                f"a worker can't reach this process ({reply.detail}): set 'host' to an address that workers reach, and"
                " 'port' to a port that is open to them"
            )
        case "refused" if lease.lost_holders and not lease.may_still_write:
            return OutOfMemory(f"{reply.detail}, most likely because it used too much memory")
        case "refused":
            return JobFailed(f"another attempt was not allowed: {reply.detail}")
        case _:
            return JobFailed("the worker lost its connection to this process, and has stopped")
