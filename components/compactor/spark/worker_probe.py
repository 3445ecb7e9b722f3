"""Whether workers have what a merge needs, and the same of it."""

from __future__ import annotations

import platform
import socket

import msgspec

from astha.version import version
from components.lib.spark.error_mapping import UNFIT
from components.lib.spark.errors import SessionProblem


class Fitness(msgspec.Struct, frozen=True):
    host: str
    astha: str
    python: str
    pyarrow: str


def describe(_nothing: object = None) -> Fitness:
    """Runs in a worker, which is warm for the first merge afterwards."""
    import pyarrow as pa

    import components.lib.lake.storage.objects  # noqa: F401

    return Fitness(socket.gethostname(), version(), platform.python_version(), pa.__version__)


def check_fitness(worker: Fitness) -> None:
    here = describe()
    if worker.astha != here.astha:
        raise SessionProblem(f"the worker on {worker.host} has astha {worker.astha}, here is {here.astha}: {UNFIT}")
