"""A session without Spark: its workers are threads that follow a script at the other end of the leash."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable
from typing import TypeAlias

from components.compactor.spark.messages import Order, Outcome, unpack
from components.compactor.spark.worker_probe import Fitness, describe
from components.lib.spark.error_mapping import explain
from components.lib.spark.errors import SessionLost, SparkError
from components.lib.spark.session import Job


class Puppet:
    """A worker's end of the leash, move by move."""

    def __init__(self, address: tuple[str, int], token: str, *, parent: int = 1, pid: int = 2) -> None:
        self.socket = socket.create_connection(address, 10)
        self.socket.sendall(f"{token} here {parent} {pid}\n".encode())
        self._lines = self.socket.makefile("rb", buffering=0)

    def hear(self) -> str:
        """The next word; nothing if the driver has hung up."""
        return self._lines.readline().decode().strip()

    def leave(self) -> None:
        self.socket.sendall(b"bye\n")
        self.die()

    def die(self) -> None:
        self._lines.close()
        self.socket.close()


Script: TypeAlias = Callable[[Order, "FakeSession"], Outcome]


def obey(order: Order, _session: FakeSession) -> Outcome:
    """A worker that does what it is told, well."""
    assert order.leash is not None
    puppet = Puppet(order.leash, order.token)
    word = puppet.hear()
    if word != "go":
        puppet.die()
        return Outcome("refused", told=word.removeprefix("no "))
    work, argument = unpack(order.work)
    result = work(argument)
    puppet.leave()
    return Outcome("done", pickle.dumps(result))


class FakeSession:
    def __init__(self, script: Script = obey, *, fitness: Fitness | None = None, reachable: bool = True) -> None:
        self.script = script
        self.fitness = fitness
        self.reachable = reachable
        self.problem: Exception | None = None
        self.hangs = False
        self.cancelled: list[Job] = []
        self.closed = threading.Event()
        self.jobs: list[Job] = []
        self.orders: list[Order] = []

    @property
    def pid(self) -> int | None:
        return None

    def start(self) -> None:
        if self.problem is not None:
            raise self.problem

    def run(self, job: Job) -> bytes:
        order = Order.opened(job.order)
        work, _ = unpack(order.work)
        if work is describe:
            if order.leash is not None and not self.reachable:
                return Outcome("unreachable", told="no route to host").sealed()
            return Outcome("done", pickle.dumps(self.fitness or describe())).sealed()
        self.jobs.append(job)
        self.orders.append(order)
        return self.script(order, self).sealed()

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job)

    def ping(self) -> None:
        if self.hangs:
            self.closed.wait(30)
            raise SessionLost("closed")

    def explain(self, error: Exception) -> SparkError:
        return error if isinstance(error, SparkError) else explain(str(error))

    def close(self, limit_s: float) -> None:
        self.closed.set()
