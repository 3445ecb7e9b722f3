"""Rounds on Spark: the session that the compactor's settings describe, for as long as the block runs."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pydantic import ValidationError

from astha.clock import LoopClock
from astha.errors import ConfigError
from astha.settings import Settings
from components.commands.topic_to_table.conversion import PLACE
from components.commands.topic_to_table.errors import BadRecord, RoundFailed, TopicTableError
from components.commands.topic_to_table.writer import NAME, RoundOrder, topic_table_format
from components.compactor.cli_context import Desk
from components.compactor.spark.executor import open_session
from components.compactor.spark.worker_lease import addresses
from components.lib.spark.environment import with_lake
from components.lib.spark.errors import OutOfMemory, SessionLost, SparkError
from components.lib.spark.session import Session
from components.lib.spark.settings import SparkSettings
from components.lib.spark_format import register
from components.lib.streams.spark_source import SPLIT_BYTES
from registry.contract import MetadataStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CLOSE_S = 5.0
_PASSING = ("Unavailable", "StorageUnavailable")
_OURS = re.compile(r"^(?:components|registry|astha)\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)


def spark_settings(settings: Settings, store: MetadataStore, clock: LoopClock, master: str | None) -> SparkSettings:
    """Those of the daemon's compactor, under another name; ``master`` wins over theirs."""
    found = Desk(settings, store, clock).component_settings().spark
    changes = {"name": "astha-to-table"} | ({} if master is None else {"master": master})
    try:
        return SparkSettings.model_validate(found.model_dump() | changes)
    except ValidationError as error:
        raise ConfigError(f"--spark: {error.errors()[0]['msg']}") from error


class SparkRounds:
    """One round at a time."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        register(spark)
        spark.dataSource.register(topic_table_format(settings))

    def run(self, order: RoundOrder, columns: tuple[str, ...]) -> None:
        """Blocks until the round is registered, or raises what Spark says. What is small is one task."""
        plan = order.round
        records = (
            self._spark.read.format(NAME)
            .option("topic", plan.topic)
            .option("offsets", plan.offsets())
            .option("columns", ",".join((*PLACE, *columns)))
            .load()
            .coalesce(max(1, -(-plan.size_bytes // SPLIT_BYTES)))
        )
        records.write.format(NAME).option("order", order.told()).mode("append").save()


class SparkHost:
    """A session and the thread in which it is used. One that was lost is replaced by the next round."""

    def __init__(self, chosen: SparkSettings, settings: Settings) -> None:
        self._chosen = chosen
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="to-table")
        self._session: Session | None = None
        self._rounds: SparkRounds | None = None

    async def start(self) -> None:
        """SessionProblem if there is no session to be had."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def run(self, order: RoundOrder, columns: tuple[str, ...]) -> None:
        """Who is cancelled leaves the round to its end, or to that of the session."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._run, order, columns)

    async def close(self) -> None:
        session, self._session, self._rounds = self._session, None, None
        if session is not None:
            await asyncio.to_thread(session.close, _CLOSE_S)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> SparkRounds:
        _, told = addresses(self._chosen)
        chosen = with_lake(self._chosen, self._settings.lake)
        self._session = open_session(chosen, told, _nobody_cares, self._settings.concealment())
        self._session.start()
        self._rounds = SparkRounds(_spark(self._session), self._settings)
        return self._rounds

    def _run(self, order: RoundOrder, columns: tuple[str, ...]) -> None:
        rounds = self._rounds or self._start()
        session = self._session
        try:
            rounds.run(order, columns)
        except Exception as error:
            if session is None:
                raise SessionLost("the Spark session was closed") from error
            told = explain(error, session)
            if isinstance(told, SessionLost | OutOfMemory):
                self._rounds = None
                session.close(_CLOSE_S)
            raise told from error


def explain(error: Exception, session: Session) -> TopicTableError | SparkError:
    """In our own words, if one of ours was raised in a worker; else in Spark's."""
    ours = _OURS.findall(str(error))
    if not ours:
        return session.explain(error)
    name, words = next(((name, words) for name, words in ours if name == BadRecord.__name__), ours[-1])
    return BadRecord(words) if name == BadRecord.__name__ else RoundFailed(words, passing=name in _PASSING)


def _nobody_cares() -> None:
    """Who runs a round learns of the session's end by its error."""


def _spark(session: Session) -> SparkSession:
    from components.lib.spark.classic import ClassicSession
    from components.lib.spark.connect import ConnectSession

    if isinstance(session, ClassicSession):
        from pyspark.sql import SparkSession

        return SparkSession(session.context)
    assert isinstance(session, ConnectSession)  # noqa: S101
    return session.session  # type: ignore[return-value]  # Connect's own class, of the same methods
