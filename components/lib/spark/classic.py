"""A session in a JVM of this process's own: on local, standalone, YARN and Kubernetes masters.

A task is an RDD job, which costs half of what the same costs through a DataFrame. PySpark keeps one JVM a process, in
variables of its classes; what they hold of a dead one is dropped here, so that another can be started.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from astha.redaction import Concealment
from components.compactor.spark import worker, worker_daemon
from components.lib.spark.environment import environment_for
from components.lib.spark.error_mapping import explain
from components.lib.spark.errors import OutOfMemory, SessionLost, SessionProblem, SparkError
from components.lib.spark.jvm import JAVA_OPTIONS, Jvm, find_java
from components.lib.spark.session import Job
from components.lib.spark.settings import SparkSettings

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "true",  # tells a crash from a worker that was killed
    "spark.broadcast.UDFCompressionThreshold": "67108864",  # an order is used once: no broadcast to be cleaned up
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_REACH_S = 5.0
_GATEWAY_S = 5.0  # for a JVM of PySpark's own to end
_HEAP_FULL = 3  # how -XX:+ExitOnOutOfMemoryError ends a JVM
_ONE = Lock()  # held by who has the session of this process


class ClassicSession:
    def __init__(
        self,
        settings: SparkSettings,
        host: str | None,
        ended: Callable[[], None],
        conceal: Concealment | None = None,
    ) -> None:
        """``ended`` is called once, from a thread, when the JVM has ended, for whatever reason. ``conceal`` learns the
        secrets among the options, and that of the gateway to the JVM.
        """
        self._settings = settings
        self._conceal = Concealment() if conceal is None else conceal
        self._conceal.add(*settings.secrets())
        self._host = host
        self._ended = ended
        self._jvm: Jvm | None = None
        self._context: SparkContext | None = None
        self._is_the_one = False
        self._closing = Lock()
        self._dead: Jvm | None = None

    @property
    def pid(self) -> int | None:
        return None if self._jvm is None else self._jvm.process.pid

    @property
    def context(self) -> SparkContext:
        """For who wants to run other jobs in the same session."""
        if self._context is None:
            raise SessionLost("the Spark session was closed")
        return self._context

    def start(self) -> None:
        environment = environment_for(self._settings)
        find_java(environment)
        _reach(self._settings.master)
        self._be_the_one()
        from pyspark.find_spark_home import _find_spark_home

        try:
            _forget()
            home = Path(_find_spark_home())  # type: ignore[no-untyped-call]
            self._jvm = Jvm(home, self._properties(), environment, self._conceal)
            Thread(target=self._watch, args=[self._jvm], name="spark-watch", daemon=True).start()
            jvm = self._jvm
            self._keep(self._connected(*jvm.address(self._settings.start_s)))
            jvm.started()
        except Exception as error:
            problem = error if isinstance(error, SparkError) else self._problem(error)
            self.close(1.0)
            raise problem from error

    def run(self, job: Job) -> bytes:
        context = self.context
        context.setJobGroup(job.name, job.told, interruptOnCancel=True)
        rdd = context.parallelize([0], 1).map(partial(worker.attempt, job.order))
        # Not PySpark's collect, which fetches a few bytes through a socket of its own.
        (batch,) = rdd._jrdd.collect()
        (answer,) = pickle.loads(batch)  # noqa: S301  (of our own workers)
        return bytes(answer)

    def cancel(self, job: Job) -> None:
        # Not PySpark's cancelJobGroup, which misses a job that is about to begin.
        self.context._jsc.sc().cancelJobGroupAndFutureJobs(job.name)

    def ping(self) -> None:
        if self.context._jsc.sc().isStopped():
            raise SessionLost("the Spark session was stopped, by its cluster or by hand")

    def explain(self, error: Exception) -> SparkError:
        from py4j.protocol import Py4JError, Py4JJavaError

        jvm = self._jvm or self._dead
        if isinstance(error, SessionLost) and jvm is not None and jvm.process.poll() is not None:
            return self._death()  # the end of the JVM was heard of before that of the call: it knows more
        if isinstance(error, SparkError):
            return error
        if isinstance(error, Py4JJavaError):
            return explain(self._conceal(_text(error)))
        # A connection ends some milliseconds before its process is seen to: the JVM is lost either way. Beside the
        # network's errors there are those of a context that was stopped under the call's hands.
        if isinstance(error, Py4JError | ConnectionError | EOFError | AttributeError):
            return self._death()
        return explain(self._conceal(f"{type(error).__name__}: {error}"))

    def close(self, limit_s: float) -> None:
        with self._closing:
            context, self._context = self._context, None
            jvm, self._jvm = self._jvm, None
            is_the_one, self._is_the_one = self._is_the_one, False
            if jvm is not None and jvm.process.poll() is not None:
                self._dead = jvm
        if jvm is not None:
            if context is not None and jvm.process.poll() is None:
                stopping = Thread(target=_stop, args=[context], name="spark-stop", daemon=True)
                stopping.start()
                stopping.join(limit_s)
            jvm.end(limit_s)
        if is_the_one:
            _forget()
            _ONE.release()

    def _keep(self, context: SparkContext) -> None:
        with self._closing:
            if self._jvm is not None:
                self._context = context
                return
        _stop(context)
        raise SessionLost("the Spark session was closed while it started")

    def _be_the_one(self) -> None:
        from pyspark import SparkContext

        other = SparkContext._active_spark_context
        if other is None and _ONE.acquire(blocking=False):
            self._is_the_one = True
            return
        told = "" if other is None else f" ({other.appName} with master {other.master})"
        raise SessionProblem(
            f"this process has a Spark session already{told}, and can have no other with master"
            f" {self._settings.place}: stop that one, or use Spark Connect (sc://) for one of them"
        )

    def _properties(self) -> dict[str, str]:
        settings = self._settings
        given = {name: value.get_secret_value() for name, value in settings.options.items()}
        chosen = {
            **_DEFAULTS,
            "spark.master": settings.master,
            "spark.app.name": settings.name,
            "spark.driver.memory": settings.memory,
        }
        if settings.master.startswith("local") and self._python == sys.executable:
            chosen["spark.python.daemon.module"] = worker_daemon.MODULE  # elsewhere it may not be installed
        if self._host is not None:
            chosen["spark.driver.host"] = self._host
        if settings.host is not None:
            chosen["spark.driver.bindAddress"] = "0.0.0.0"  # noqa: S104  (the host may be a name for others only)
        log = Path(__file__).with_name("log4j2.properties")
        ours = f"-XX:+ExitOnOutOfMemoryError -Dlog4j2.configurationFile={log} -Dastha.log.level={settings.log_level}"
        return {**chosen, **given, JAVA_OPTIONS: f"{ours} {given.get(JAVA_OPTIONS, '')}".strip()}

    @property
    def _python(self) -> str:
        return self._settings.python or os.environ.get("PYSPARK_PYTHON") or sys.executable

    def _connected(self, port: int, secret: str) -> SparkContext:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        # Who has this secret runs code as this process. At debug level py4j logs it, and whatever is sent to the JVM.
        self._conceal.add(secret)
        library = logging.getLogger("py4j")
        library.setLevel(max(library.level, logging.WARNING))
        # How PySpark is told of a JVM that runs already.
        told = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        os.environ.update(told)
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            for name in told:
                del os.environ[name]
        context = SparkContext(conf=SparkConf(_jvm=gateway.jvm), gateway=gateway)
        # Its threads would print what a dying JVM does to their connections.
        context._accumulatorServer.handle_error = _hush  # type: ignore[assignment]
        # Spark takes this for a shell, where only warnings are heard.
        context.setLogLevel(self._settings.log_level.upper())
        context.pythonExec = self._python
        return context

    def _watch(self, jvm: Jvm) -> None:
        jvm.process.wait()
        self._ended()

    def _problem(self, error: Exception) -> SparkError:
        """Why there is no context: a master that can't be reached, a setting that Spark refuses."""
        words = str(explain(self._conceal(str(error)))).removeprefix("the job failed: ")
        return SessionProblem(f"no Spark session with master {self._settings.place}: {words}")

    def _death(self) -> SparkError:
        jvm = self._jvm or self._dead
        if jvm is None:
            return SessionLost("the Spark session was closed")
        with suppress(subprocess.TimeoutExpired):
            jvm.process.wait(1)
        lost = jvm.death()
        if jvm.process.poll() == _HEAP_FULL:
            return OutOfMemory(f"{lost}: its heap was full; raise 'memory' if this repeats")
        return lost


def _reach(master: str) -> None:
    """Spark would knock at a standalone master's door for a minute, and then say less."""
    if not master.startswith("spark://"):
        return
    trouble: list[str] = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _REACH_S):
                return
        except (OSError, ValueError) as error:
            trouble.append(f"{address}: {error}")
    raise SessionProblem(f"no Spark master answers at {master} ({'; '.join(trouble)}): start it, or correct 'master'")


def _hush(_request: object, _address: object) -> None:
    """The end of a JVM is told once, by who watches it."""


def _text(error: Py4JJavaError) -> str:
    """With the traces of Java and Python, if the JVM still lives to tell them."""
    try:
        return str(error)
    except Exception:
        return repr(error.args)


def _stop(context: SparkContext) -> None:
    with warnings.catch_warnings(), suppress(Exception):  # of a JVM that is dead already
        warnings.simplefilter("ignore")
        context.stop()


def _forget() -> None:
    """Whatever PySpark's classes hold of a JVM that has ended, or in which nobody has a context any more."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    if context is not None:
        context._jsc = None
        _stop(context)
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None and process.stdin is not None:
            process.stdin.close()  # which ends its JVM
            try:
                process.wait(_GATEWAY_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
