"""Runs micro-batches on Spark, in a session with the compactor's Spark settings."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pydantic import ValidationError

from astha.errors import ConfigError
from astha.routing.subscriptions import read_subscriptions
from astha.settings import Settings
from astha.validation_errors import described
from components.commands.topic_to_table import worker_daemon
from components.commands.topic_to_table.conversion import PLACE
from components.commands.topic_to_table.errors import BadRecord, MicroBatchFailed, TopicTableError
from components.commands.topic_to_table.writer import NAME, WriteRequest, topic_table_format
from components.lib.spark.environment import with_lake_credentials
from components.lib.spark.errors import OutOfMemory, SessionLost, SparkError
from components.lib.spark.network import driver_addresses
from components.lib.spark.session import Session, open_session, sql_session
from components.lib.spark.settings import SparkSettings
from components.lib.spark_format import register
from components.lib.streams.spark_source import SPLIT_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLOSE_S = 5.0
_COMPONENT = "compactor"  # whose Spark settings are used
_TRANSIENT = ("Unavailable", "StorageUnavailable")
_OWN_ERROR = re.compile(r"^(?:components|registry|astha)\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)


def spark_settings(settings: Settings, master: str | None) -> SparkSettings:
    """Returns the Spark settings of the daemon's compactor, under another name. ``master`` overrides theirs."""
    path = settings.subscriptions
    subscription = read_subscriptions(path).get(_COMPONENT) if path.exists() else None
    try:
        found = SparkSettings.model_validate({} if subscription is None else subscription.settings.get("spark", {}))
    except ValidationError as error:
        raise ConfigError(f"{path}: the settings of component {_COMPONENT}: spark: {described(error)}") from error
    changes = {"name": "astha-to-table"} | ({} if master is None else {"master": master})
    try:
        return SparkSettings.model_validate(found.model_dump() | changes)
    except ValidationError as error:
        raise ConfigError(f"--spark: {error.errors()[0]['msg']}") from error


class MicroBatchJobs:
    """Runs micro-batches in one Spark session, one at a time."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        register(spark)
        spark.dataSource.register(topic_table_format(settings))

    def run(self, request: WriteRequest, columns: tuple[str, ...]) -> None:
        """Blocks until the micro-batch is registered. Raises Spark's errors. A small one is a single task."""
        batch = request.batch
        records = (
            self._spark.read.format(NAME)
            .option("topic", batch.topic)
            .option("offsets", batch.offsets())
            .option("columns", ",".join((*PLACE, *columns)))
            .load()
            .coalesce(max(1, -(-batch.size_bytes // SPLIT_BYTES)))
        )
        records.write.format(NAME).option("request", request.encode()).mode("append").save()


class SparkRunner:
    """A Spark session and the thread in which it is used. The next micro-batch replaces a session that was lost."""

    def __init__(self, spark: SparkSettings, settings: Settings) -> None:
        self._spark_settings = spark
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="to-table")
        self._session: Session | None = None
        self._jobs: MicroBatchJobs | None = None

    async def start(self) -> None:
        """Raises `SessionProblem` if no session can be had."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def run(self, request: WriteRequest, columns: tuple[str, ...]) -> None:
        """A cancelled call leaves the micro-batch running until it ends, or the session does."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._run, request, columns)

    async def close(self) -> None:
        session, self._session, self._jobs = self._session, None, None
        if session is not None:
            await asyncio.to_thread(session.close, _CLOSE_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> MicroBatchJobs:
        _, host = driver_addresses(self._spark_settings)
        settings = with_lake_credentials(self._spark_settings, self._settings.lake)
        redact = self._settings.redactor()
        self._session = open_session(settings, host, _ignore_end, redact, worker_daemon.MODULE)
        self._session.start()
        self._jobs = MicroBatchJobs(sql_session(self._session), self._settings)
        return self._jobs

    def _run(self, request: WriteRequest, columns: tuple[str, ...]) -> None:
        jobs = self._jobs or self._start()
        session = self._session
        try:
            jobs.run(request, columns)
        except Exception as error:
            if session is None:
                raise SessionLost("the Spark session was closed") from error
            problem = explain(error, session)
            if isinstance(problem, SessionLost | OutOfMemory):
                self._jobs = None
                session.close(_CLOSE_S)
            raise problem from error


def explain(error: Exception, session: Session) -> TopicTableError | SparkError:
    """Returns our own error, if a worker raised one; else what Spark's means."""
    ours = _OWN_ERROR.findall(str(error))
    if not ours:
        return session.explain(error)
    name, words = next(((name, words) for name, words in ours if name == BadRecord.__name__), ours[-1])
    if name == BadRecord.__name__:
        return BadRecord(words)
    return MicroBatchFailed(words, transient=name in _TRANSIENT)


def _ignore_end() -> None:
    """The running micro-batch fails when the session ends: nothing else needs to know."""
