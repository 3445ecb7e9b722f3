"""Canaries: the private parts of PySpark and py4j that `pyspark_internals` uses are what it takes them for.

If one of these fails after an upgrade, compare the function of `components/lib/spark/pyspark_internals.py` that it
names with the new PySpark, then run the slow tests of `tests/integration/components/compactor/test_spark.py`.
"""

from __future__ import annotations

import inspect
import struct

import pyspark
import pytest

from components.lib.spark import pyspark_internals as internals
from components.lib.spark.pyspark_internals import CONNECTION_FILE, read_connection

TESTED = "4.1.4"


def source(thing: object) -> str:
    return inspect.getsource(thing)  # type: ignore[arg-type]


def test_the_version_is_the_one_that_was_read() -> None:
    assert pyspark.__version__ == TESTED, (
        f"PySpark is {pyspark.__version__}; its internals were read in {TESTED}: check each function of"
        " pyspark_internals.py, run the slow Spark tests, and set TESTED"
    )


def test_spark_home() -> None:
    assert (internals.spark_home() / "bin" / "spark-submit").exists(), "spark_home: _find_spark_home has changed"


def test_how_a_jvm_reports_its_gateway() -> None:
    from pyspark import java_gateway

    text = source(java_gateway.launch_gateway)
    for name in (CONNECTION_FILE, "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        assert name in text, f"connect_to_jvm and Jvm: PySpark no longer uses the environment variable {name}"
    assert "read_int(info)" in text, "read_connection: the connection file has another format"
    content = struct.pack(">ii", 4711, 6) + b"secret"
    assert read_connection(content) == (4711, "secret")


@pytest.mark.parametrize("name", ["_gateway", "_jvm", "_active_spark_context"])
def test_class_variables_of_the_context(name: str) -> None:
    from pyspark import SparkContext

    assert hasattr(SparkContext, name), f"forget_jvm and active_context: SparkContext.{name} is gone"


@pytest.mark.parametrize("name", ["_instantiatedSession", "_activeSession"])
def test_class_variables_of_the_session(name: str) -> None:
    from pyspark.sql import SparkSession

    assert hasattr(SparkSession, name), f"forget_jvm: SparkSession.{name} is gone"


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("_accumulatorServer", "connect_to_jvm"),
        ("pythonExec", "set_worker_python"),
        ("_jsc", "cancel_job_group, is_stopped and forget_jvm"),
    ],
)
def test_attributes_of_a_context(name: str, user: str) -> None:
    from pyspark import SparkContext

    assert f"self.{name} = " in source(SparkContext._do_init), f"{user}: a SparkContext no longer sets {name}"


def test_the_accumulator_server_reports_errors_by_a_method() -> None:
    from pyspark.accumulators import AccumulatorTCPServer

    assert hasattr(AccumulatorTCPServer, "handle_error"), "connect_to_jvm: the server has no handle_error"


def test_java_behind_a_job() -> None:
    from pyspark import RDD, SparkContext

    assert "self._jrdd.rdd()" in source(RDD.collect), "run_in_worker: RDD._jrdd is gone"
    assert "self._jsc.sc().cancelJobGroup" in source(SparkContext.cancelJobGroup), "cancel_job_group: see PySpark's own"


def test_the_daemon_of_workers() -> None:
    from pyspark import daemon, worker_util

    assert list(inspect.signature(daemon.manager).parameters) == [], (
        "run_daemon: pyspark.daemon.manager takes arguments"
    )
    assert "gc.collect()" in source(daemon.manager), "tune_worker: PySpark no longer collects garbage after a task"
    assert "invalidate_caches()" in source(worker_util.setup_spark_files), "tune_worker: import caches are kept now"


@pytest.mark.parametrize("name", ["set_retry_policies", "disable_reattachable_execute"])
def test_the_connect_client(name: str) -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient

    assert hasattr(SparkConnectClient, name), f"open_connect_session: the client has no {name}, so plans may be resent"
    assert list(inspect.signature(DefaultChannelBuilder).parameters)[:2] == ["url", "channelOptions"]
