"""A session without Spark. Its workers are threads that follow a script on their side of the lease."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable
from typing import TypeAlias

from components.compactor.spark.messages import TaskReply, TaskRequest, unpack
from components.compactor.spark.worker_probe import WorkerVersions, worker_versions
from components.lib.spark.error_mapping import explain
from components.lib.spark.errors import SessionLost, SparkError
from components.lib.spark.session import SparkJob


class ScriptedWorker:
    """The worker's side of the lease, step by step."""

    def __init__(self, address: tuple[str, int], token: str, *, parent: int = 1, pid: int = 2) -> None:
        self.socket = socket.create_connection(address, 10)
        self.socket.sendall(f"{token} here {parent} {pid}\n".encode())
        self._lines = self.socket.makefile("rb", buffering=0)

    def receive(self) -> str:
        """Returns the next message; an empty text if the driver has closed the connection."""
        return self._lines.readline().decode().strip()

    def say_bye(self) -> None:
        self.socket.sendall(b"bye\n")
        self.die()

    def die(self) -> None:
        self._lines.close()
        self.socket.close()


Script: TypeAlias = Callable[[TaskRequest, "FakeSession"], TaskReply]


def follow_protocol(request: TaskRequest, _session: FakeSession) -> TaskReply:
    """A worker that follows the protocol and succeeds."""
    assert request.lease_address is not None
    worker = ScriptedWorker(request.lease_address, request.token)
    word = worker.receive()
    if word != "go":
        worker.die()
        return TaskReply("refused", detail=word.removeprefix("no "))
    work, argument = unpack(request.work)
    result = work(argument)
    worker.say_bye()
    return TaskReply("done", pickle.dumps(result))


class FakeSession:
    def __init__(
        self, script: Script = follow_protocol, *, versions: WorkerVersions | None = None, reachable: bool = True
    ) -> None:
        self.script = script
        self.versions = versions
        self.reachable = reachable
        self.problem: Exception | None = None
        self.hangs = False
        self.cancelled: list[SparkJob] = []
        self.closed = threading.Event()
        self.jobs: list[SparkJob] = []
        self.requests: list[TaskRequest] = []

    @property
    def pid(self) -> int | None:
        return None

    def start(self) -> None:
        if self.problem is not None:
            raise self.problem

    def run(self, job: SparkJob) -> bytes:
        request = TaskRequest.decode(job.payload)
        work, _ = unpack(request.work)
        if work is worker_versions:
            if request.lease_address is not None and not self.reachable:
                return TaskReply("unreachable", detail="no route to host").encode()
            return TaskReply("done", pickle.dumps(self.versions or worker_versions())).encode()
        self.jobs.append(job)
        self.requests.append(request)
        return self.script(request, self).encode()

    def cancel(self, job: SparkJob) -> None:
        self.cancelled.append(job)

    def ping(self) -> None:
        if self.hangs:
            self.closed.wait(30)
            raise SessionLost("closed")

    def explain(self, error: Exception) -> SparkError:
        return error if isinstance(error, SparkError) else explain(str(error))

    def close(self, limit_s: float) -> None:
        self.closed.set()
