"""All uses of private or undocumented parts of PySpark and py4j, so that an upgrade has one module to look at.

`tests/unit/components/lib/spark/test_pyspark_internals.py` fails if one of them changes, and says which.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext
    from pyspark.sql.connect.session import SparkSession as ConnectSparkSession

CONNECTION_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The environment variable by which a JVM is told in which file to write port and secret of its gateway."""

_GATEWAY_EXIT_S = 5.0


def spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())  # type: ignore[no-untyped-call]


def read_connection(content: bytes) -> tuple[int, str]:
    """Returns port and secret of the gateway, from what a JVM wrote to its connection file."""
    port, length = struct.unpack_from(">ii", content)
    return port, content[8 : 8 + length].decode()


def connect_to_jvm(port: int, secret: str) -> SparkContext:
    """Returns a context in a JVM that runs already, as `spark-submit` hands one to a Python program."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(variables)
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name in variables:
            del os.environ[name]
    context = SparkContext(conf=SparkConf(_jvm=gateway.jvm), gateway=gateway)
    # The threads of this server print a traceback when a dying JVM closes their connections.
    context._accumulatorServer.handle_error = _ignore_error  # type: ignore[assignment]
    return context


def set_worker_python(context: SparkContext, python: str) -> None:
    context.pythonExec = python


def run_in_worker(context: SparkContext, function: Callable[[Any], bytes]) -> bytes:
    """Runs one task and returns its bytes.

    An RDD job costs half of a DataFrame's. PySpark's own `collect` fetches the result through one more socket.
    """
    rdd = context.parallelize([0], 1).map(function)
    (batch,) = rdd._jrdd.collect()
    (found,) = pickle.loads(batch)  # noqa: S301  (from our own workers)
    return bytes(found)


def cancel_job_group(context: SparkContext, name: str) -> None:
    """Also cancels a job of the group that is about to begin, which PySpark's `cancelJobGroup` misses."""
    context._jsc.sc().cancelJobGroupAndFutureJobs(name)


def is_stopped(context: SparkContext) -> bool:
    return bool(context._jsc.sc().isStopped())


def active_context() -> SparkContext | None:
    """Returns the context that this process has, whichever code started it."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def stop_context(context: SparkContext) -> None:
    """Stops it. Errors and warnings of a JVM that is dead already are ignored."""
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        context.stop()


def forget_jvm() -> None:
    """Clears what PySpark's classes hold of a JVM that has ended, or that no context uses any more.

    PySpark keeps one JVM per process in class variables; without this, no other can be started.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        stop_context(context)
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None and process.stdin is not None:
            process.stdin.close()  # ends its JVM
            try:
                process.wait(_GATEWAY_EXIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def java_error_text(error: Py4JJavaError) -> str:
    """Returns the error with its Java and Python stack traces, which are fetched from the JVM if that still runs."""
    try:
        return str(error)
    except Exception:
        return repr(error.args)


def open_connect_session(url: str, channel_options: Sequence[tuple[str, int]]) -> ConnectSparkSession:
    """Returns a Connect session that sends each plan once: a plan sent again is a second attempt of its task."""
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession(DefaultChannelBuilder(url, list(channel_options)))
    session.client.set_retry_policies([])
    session.client.disable_reattachable_execute()
    return session


def run_daemon() -> None:
    """Runs PySpark's own daemon, which forks the Python workers, in this process."""
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


def _ignore_error(_request: object, _address: object) -> None:
    """`ClassicSession` reports the end of a JVM, once."""
