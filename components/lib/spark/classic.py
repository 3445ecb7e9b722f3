"""A session in a JVM that this process starts: on local, standalone, YARN and Kubernetes masters."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from astha.redaction import Redactor
from components.lib.spark import pyspark_internals as internals
from components.lib.spark.environment import jvm_environment
from components.lib.spark.error_mapping import explain
from components.lib.spark.errors import OutOfMemory, SessionLost, SessionProblem, SparkError
from components.lib.spark.jvm import JAVA_OPTIONS, Jvm, find_java
from components.lib.spark.network import require_master
from components.lib.spark.session import SparkJob, call
from components.lib.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark import SparkContext

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "true",  # tells a crash from a worker that was killed
    "spark.broadcast.UDFCompressionThreshold": "67108864",  # a payload is used once: no broadcast to be cleaned up
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_HEAP_FULL = 3  # the exit code of -XX:+ExitOnOutOfMemoryError
_PROCESS_SESSION = Lock()  # held by the one session that PySpark allows per process


class ClassicSession:
    def __init__(
        self,
        settings: SparkSettings,
        host: str | None,
        on_end: Callable[[], None],
        redact: Redactor | None = None,
        worker_daemon: str | None = None,
    ) -> None:
        """``host`` is the driver's address for workers. ``on_end`` is called once, from a thread, when the JVM has
        ended, for whatever reason. ``redact`` learns the secrets among the options and the gateway's.
        ``worker_daemon`` is the module of a `run_worker_daemon`; it is used where it is sure to be installed.
        """
        self._settings = settings
        self._redact = Redactor() if redact is None else redact
        self._redact.add(*settings.secrets())
        self._host = host
        self._on_end = on_end
        self._worker_daemon = worker_daemon
        self._jvm: Jvm | None = None
        self._context: SparkContext | None = None
        self._has_lock = False
        self._closing = Lock()
        self._ended_jvm: Jvm | None = None

    @property
    def pid(self) -> int | None:
        return None if self._jvm is None else self._jvm.process.pid

    @property
    def context(self) -> SparkContext:
        """PySpark's context, to run other jobs in the same session."""
        if self._context is None:
            raise SessionLost("the Spark session was closed")
        return self._context

    def start(self) -> None:
        environment = jvm_environment(self._settings)
        find_java(environment)
        require_master(self._settings.master)
        self._lock_process()
        try:
            internals.forget_jvm()
            self._jvm = Jvm(internals.spark_home(), self._properties(), environment, self._redact)
            Thread(target=self._watch, args=[self._jvm], name="spark-watch", daemon=True).start()
            jvm = self._jvm
            self._keep(self._connect(*jvm.connection(self._settings.start_timeout_s)))
            jvm.started()
        except Exception as error:
            problem = error if isinstance(error, SparkError) else self._start_problem(error)
            self.close(1.0)
            raise problem from error

    def run(self, job: SparkJob) -> bytes:
        context = self.context
        context.setJobGroup(job.name, job.description, interruptOnCancel=True)
        return internals.run_in_worker(context, partial(call, job.function, job.payload))

    def cancel(self, job: SparkJob) -> None:
        internals.cancel_job_group(self.context, job.name)

    def ping(self) -> None:
        if internals.is_stopped(self.context):
            raise SessionLost("the Spark session was stopped, by its cluster or by hand")

    def explain(self, error: Exception) -> SparkError:
        from py4j.protocol import Py4JError, Py4JJavaError

        jvm = self._jvm or self._ended_jvm
        if isinstance(error, SessionLost) and jvm is not None and jvm.process.poll() is not None:
            return self._lost()  # the exit of the JVM was seen before the call failed: it says more
        if isinstance(error, SparkError):
            return error
        if isinstance(error, Py4JJavaError):
            return explain(self._redact(internals.java_error_text(error)))
        # A connection ends some milliseconds before its process is seen to exit: the JVM is lost either way.
        # AttributeError: the context was stopped during the call.
        if isinstance(error, Py4JError | ConnectionError | EOFError | AttributeError):
            return self._lost()
        return explain(self._redact(f"{type(error).__name__}: {error}"))

    def close(self, limit_s: float) -> None:
        with self._closing:
            context, self._context = self._context, None
            jvm, self._jvm = self._jvm, None
            has_lock, self._has_lock = self._has_lock, False
            if jvm is not None and jvm.process.poll() is not None:
                self._ended_jvm = jvm
        if jvm is not None:
            if context is not None and jvm.process.poll() is None:
                stopping = Thread(target=internals.stop_context, args=[context], name="spark-stop", daemon=True)
                stopping.start()
                stopping.join(limit_s)
            jvm.end(limit_s)
        if has_lock:
            internals.forget_jvm()
            _PROCESS_SESSION.release()

    def _keep(self, context: SparkContext) -> None:
        with self._closing:
            if self._jvm is not None:
                self._context = context
                return
        internals.stop_context(context)
        raise SessionLost("the Spark session was closed while it started")

    def _lock_process(self) -> None:
        other = internals.active_context()
        if other is None and _PROCESS_SESSION.acquire(blocking=False):
            self._has_lock = True
            return
        which = "" if other is None else f" ({other.appName} with master {other.master})"
        raise SessionProblem(
            f"this process has a Spark session already{which}, and can have no other with master"
            f" {self._settings.address}: stop that one, or use Spark Connect (sc://) for one of them"
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
        if self._worker_daemon is not None and settings.local and self._python == sys.executable:
            chosen["spark.python.daemon.module"] = self._worker_daemon
        if self._host is not None:
            chosen["spark.driver.host"] = self._host
        if settings.host is not None:
            chosen["spark.driver.bindAddress"] = "0.0.0.0"  # noqa: S104  (the name may resolve elsewhere only)
        log = Path(__file__).with_name("log4j2.properties")
        ours = f"-XX:+ExitOnOutOfMemoryError -Dlog4j2.configurationFile={log} -Dastha.log.level={settings.log_level}"
        return {**chosen, **given, JAVA_OPTIONS: f"{ours} {given.get(JAVA_OPTIONS, '')}".strip()}

    @property
    def _python(self) -> str:
        return self._settings.python or os.environ.get("PYSPARK_PYTHON") or sys.executable

    def _connect(self, port: int, secret: str) -> SparkContext:
        # The secret lets its holder run code as this process. At debug level py4j logs it, and all that it sends.
        self._redact.add(secret)
        library = logging.getLogger("py4j")
        library.setLevel(max(library.level, logging.WARNING))
        context = internals.connect_to_jvm(port, secret)
        # Spark takes this for a shell, in which it logs warnings only.
        context.setLogLevel(self._settings.log_level.upper())
        internals.set_worker_python(context, self._python)
        return context

    def _watch(self, jvm: Jvm) -> None:
        jvm.process.wait()
        self._on_end()

    def _start_problem(self, error: Exception) -> SparkError:
        """Explains why there is no context: a master that can't be reached, a setting that Spark refuses."""
        reason = str(explain(self._redact(str(error)))).removeprefix("the job failed: ")
        return SessionProblem(f"no Spark session with master {self._settings.address}: {reason}")

    def _lost(self) -> SparkError:
        jvm = self._jvm or self._ended_jvm
        if jvm is None:
            return SessionLost("the Spark session was closed")
        with suppress(subprocess.TimeoutExpired):
            jvm.process.wait(1)
        lost = jvm.lost()
        if jvm.process.poll() == _HEAP_FULL:
            return OutOfMemory(f"{lost}: its heap was full; raise 'memory' if this repeats")
        return lost
