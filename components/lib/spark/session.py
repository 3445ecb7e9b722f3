"""A Spark session, whether its JVM is here or on a Spark Connect server. Every call blocks, and is made in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from astha.redaction import Redactor
from components.lib.spark.errors import SparkError
from components.lib.spark.settings import SparkSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

WorkerFunction: TypeAlias = Callable[[bytes], bytes]
"""Runs in a Python worker, which imports it by its module and name."""


class SparkJob(msgspec.Struct, frozen=True):
    """One job of one task."""

    name: str  # unique
    description: str  # shown in Spark's UI
    function: WorkerFunction
    payload: bytes


class Session(Protocol):
    @property
    def pid(self) -> int | None:
        """The process whose descendants are the workers; None if they run on another machine."""
        ...

    def start(self) -> None:
        """Raises `SessionProblem`, and leaves nothing behind, if no session can be had."""
        ...

    def run(self, job: SparkJob) -> bytes:
        """Returns what the job's function returned in a worker. Errors are for `explain`."""
        ...

    def cancel(self, job: SparkJob) -> None:
        """Cancels it, whether it has begun or not. Spark drops the task at once; its Python worker may run on."""
        ...

    def ping(self) -> None:
        """Returns if the session answers. Errors are for `explain`."""
        ...

    def explain(self, error: Exception) -> SparkError:
        """Translates an error of these calls."""
        ...

    def close(self, limit_s: float) -> None:
        """Ends the session, dead or alive. Calls in flight fail; another session can be started afterwards."""
        ...


def open_session(
    settings: SparkSettings,
    host: str,
    on_end: Callable[[], None],
    redact: Redactor | None = None,
    worker_daemon: str | None = None,
) -> Session:
    """Returns a session that is not started yet. See `ClassicSession` for the arguments."""
    # Imported here because each brings its own half of PySpark.
    if settings.connect:
        from components.lib.spark.connect import ConnectSession

        return ConnectSession(settings, redact)
    from components.lib.spark.classic import ClassicSession

    return ClassicSession(settings, host, on_end, redact, worker_daemon)


def sql_session(session: Session) -> SparkSession:
    """Returns PySpark's own session object, for DataFrames."""
    from components.lib.spark.classic import ClassicSession
    from components.lib.spark.connect import ConnectSession

    if isinstance(session, ClassicSession):
        from pyspark.sql import SparkSession

        return SparkSession(session.context)
    assert isinstance(session, ConnectSession)  # noqa: S101
    return session.session  # type: ignore[return-value]  # Connect's own class, with the same methods


def call(function: WorkerFunction, payload: bytes, _row: object) -> bytes:
    """What a worker runs for the one row of an RDD job."""
    return function(payload)


def call_per_row(
    function: WorkerFunction, payload: bytes, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a worker runs on Spark Connect, which has DataFrames only: one call per row of the input."""
    import pyarrow as pa

    for batch in batches:
        results = [function(payload) for _ in range(batch.num_rows)]
        yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], ["answer"])
