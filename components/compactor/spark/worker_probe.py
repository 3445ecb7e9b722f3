"""Checks that workers have what a merge needs, in the same version."""

from __future__ import annotations

import platform
import socket

import msgspec

from astha.version import version
from components.lib.spark.error_mapping import WORKER_NEEDS
from components.lib.spark.errors import SessionProblem


class WorkerVersions(msgspec.Struct, frozen=True):
    host: str
    astha: str
    python: str
    pyarrow: str


def worker_versions(_nothing: object = None) -> WorkerVersions:
    """Runs in a worker. The imports make it ready for its first merge."""
    import pyarrow as pa

    import components.lib.lake.storage.objects  # noqa: F401

    return WorkerVersions(socket.gethostname(), version(), platform.python_version(), pa.__version__)


def require_same_version(worker: WorkerVersions) -> None:
    here = worker_versions()
    if worker.astha != here.astha:
        raise SessionProblem(
            f"the worker on {worker.host} has astha {worker.astha}, here is {here.astha}: {WORKER_NEEDS}"
        )
