"""The catalog at work: Spark SQL and DuckDB write one table through `astha catalog`, and the daemon gets the events.

Catalog and Spark are processes of their own. Where Spark or Iceberg's runtime can't be had, DuckDB creates the table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import duckdb
import msgspec
import structlog
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.lanes.lane import Lane
from astha.subscribers import ComponentContext, LakeSettings, Subscriber
from astha.testing import RecordingSubscriber
from components import iceberg_updater
from components.commands.demo import spark_sql
from components.commands.demo.daemon import running, until
from components.commands.demo.lake import load_iceberg, verify
from components.commands.demo.stage import Stage
from components.lib.lake.table_lookup import find_table
from registry.connect import open_store
from registry.embedded_postgres import die_with_parent, free_port
from registry.migrate import migrate
from registry.models import IcebergCommit

TABLE = "shop.orders"

_SPARK_START_S = 300.0  # with the download of Iceberg's runtime
_STOP_S = 30.0

_ROWS = "SELECT id, CAST(id % 100 AS DOUBLE) AS price FROM range({first}, {end})"
_SPARK = (
    "CREATE NAMESPACE lake.shop",
    f"CREATE TABLE lake.{TABLE} AS {_ROWS.format(first=0, end=3_000)}",
    f"INSERT INTO lake.{TABLE} {_ROWS.format(first=3_000, end=4_000)}",
    f"MERGE INTO lake.{TABLE} AS t USING ({_ROWS.format(first=3_900, end=4_100)}) AS s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET price = 0 WHEN NOT MATCHED THEN INSERT *",
)
_DUCKDB_INSTEAD = ("CREATE SCHEMA lake.shop", f"CREATE TABLE lake.{TABLE} (id BIGINT, price DOUBLE)")
_DUCKDB = f"INSERT INTO lake.{TABLE} SELECT i, 1.5 FROM range(5000, 5500) AS r(i)"
_COUNT = f"SELECT count(*) FROM lake.{TABLE}"


class SparkMissing(Exception):
    """Spark SQL with Iceberg's runtime can't be started; the message says why."""


@dataclass(frozen=True)
class CatalogOutcome:
    commits: Sequence[IcebergCommit]
    file_events: int
    registry_files: int
    registry_rows: int
    spark_rows: int | None
    duckdb_rows: int
    equal: bool

    def cells(self) -> dict[str, str]:
        return {
            "commits by engines, as events": f"{len(self.commits)}",
            "events of data files": f"{self.file_events}",
            "data files in the registry": f"{self.registry_files}",
            "rows by the registry's statistics": f"{self.registry_rows:,}",
            "rows that Spark SQL reads": "not started" if self.spark_rows is None else f"{self.spark_rows:,}",
            "rows that DuckDB reads": f"{self.duckdb_rows:,}",
            "registry, Iceberg and storage agree": "yes" if self.equal else "NO",
        }


async def show(url: str, directory: Path, stage: Stage) -> CatalogOutcome:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    await asyncio.to_thread(migrate, url)
    lake = LakeSettings(warehouse=str(directory / "warehouse"))
    store = await open_store(url)
    try:
        around = ComponentContext(store, SystemLoopClock(), SecretStr(url), lake)
        seen = RecordingSubscriber("table_files", "iceberg_commits")
        components: dict[str, Subscriber] = {"iceberg_updater": iceberg_updater.create({}, around), "events": seen}
        with ExitStack() as processes:
            uri = await _serve(around, directory, processes)
            stage.say(f"`astha catalog` serves the registry at {uri}")
            spark = await _start_spark(uri, directory, processes, stage)
            async with running(url, store, components, stage) as lanes:
                await until(lambda: all(lane.state == "live" for lane in lanes))
                return await _act(around, uri, spark, seen, lanes, stage)
    finally:
        await store.close()


async def _act(
    around: ComponentContext, uri: str, spark: SparkSql | None, seen: RecordingSubscriber, lanes: list[Lane],
    stage: Stage,
) -> CatalogOutcome:  # fmt: skip
    with _attached(uri) as connection:
        if spark is not None:
            for statement in _SPARK:
                await _run("Spark SQL", statement, spark.sql, seen, stage)
        for statement in (*(() if spark is not None else _DUCKDB_INSTEAD), _DUCKDB):
            await _run("DuckDB", statement, lambda text: connection.execute(text).fetchall(), seen, stage)
        position = await around.store.position()
        await until(lambda: all(lane.state == "live" and lane.position >= position for lane in lanes))
        (found,) = await asyncio.to_thread(lambda: connection.execute(_COUNT).fetchall())
    spark_rows = None if spark is None else (await asyncio.to_thread(spark.sql, _COUNT))[0][0]
    table = await find_table(around.store, TABLE)
    files = [event for event in seen.events if event.table == "table_files"]
    return CatalogOutcome(
        _commits(seen), len(files), table.file_count, table.row_count, spark_rows, int(found[0]), await verify(around)
    )


async def _run(
    engine: str, statement: str, execute: Callable[[str], object], seen: RecordingSubscriber, stage: Stage
) -> None:
    """Runs one statement, waits for its event, and prints what the event says."""
    before = len(_commits(seen))
    await asyncio.to_thread(execute, statement)
    stage.say(f"{engine}: {statement}")
    if statement.startswith(("CREATE NAMESPACE", "CREATE SCHEMA")):
        return  # no table, so no commit
    await until(lambda: len(_commits(seen)) > before)
    for commit in _commits(seen)[before:]:
        stage.say(
            f"  event: {commit.operation}, files +{commit.added_files} -{commit.removed_files}, "
            f"rows +{commit.added_rows:,} -{commit.removed_rows:,}"
        )


def _commits(seen: RecordingSubscriber) -> list[IcebergCommit]:
    return [event.data for event in seen.events if isinstance(event.data, IcebergCommit)]


@contextmanager
def _attached(uri: str) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        load_iceberg(connection, "httpfs")
        connection.execute(f"ATTACH 'lake' (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')")
        yield connection


async def _serve(around: ComponentContext, directory: Path, processes: ExitStack) -> str:
    """Starts `astha catalog`. Returns its address when it is ready."""
    port = free_port()
    config = directory / "catalog.yaml"
    content = {
        "registry": {"url": around.registry_url.get_secret_value()},
        "lake": {"warehouse": around.lake.warehouse},
        "catalog": {"port": port},
    }
    config.touch(0o600)
    config.write_bytes(msgspec.json.encode(content))  # JSON is YAML
    log = directory / "catalog.log"
    command = [sys.executable, "-m", "astha.cli", "catalog", "--config", str(config)]
    process = _started(command, log, processes, stdin=subprocess.DEVNULL)
    uri = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"astha catalog has ended: {log.read_text()[-1_000:]}")
        try:
            with urlopen(f"{uri}/readyz", timeout=5) as response:  # noqa: S310  (our own, on loopback)
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    await until(ready)
    return uri


async def _start_spark(uri: str, directory: Path, processes: ExitStack, stage: Stage) -> SparkSql | None:
    stage.say(f"Spark SQL starts with {spark_sql.RUNTIME}; the first time, it is downloaded")
    spark = SparkSql(uri, directory, processes)
    try:
        async with asyncio.timeout(_SPARK_START_S):
            await asyncio.to_thread(spark.wait)
    except (SparkMissing, TimeoutError) as error:
        stage.say(f"Spark SQL can't be started, so its part is left out: {error}")
        spark.stop()
        return None
    return spark


class SparkSql:
    """A process that runs statements."""

    def __init__(self, uri: str, directory: Path, processes: ExitStack) -> None:
        self._log = directory / "spark.log"
        command = [sys.executable, "-m", spark_sql.__name__, uri]
        environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(directory)}
        self._process = _started(
            command, self._log, processes, stdin=subprocess.PIPE, stdout=subprocess.PIPE, environment=environment
        )

    def wait(self) -> None:
        """Returns when the session is ready."""
        self._read()

    def sql(self, statement: str) -> list[list[int]]:
        assert self._process.stdin is not None  # noqa: S101  (a pipe)
        self._process.stdin.write(msgspec.json.encode(statement) + b"\n")
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        self._process.kill()

    def _read(self) -> list[list[int]]:
        assert self._process.stdout is not None  # noqa: S101  (a pipe)
        text = self._process.stdout.readline()
        if not text:
            said = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            reasons = [line for line in said if "not found" in line or "JAVA_HOME" in line]
            raise SparkMissing("; ".join(reasons[:2] or said[-1:]) or "it has ended")
        line = msgspec.json.decode(text, type=spark_sql.Line)
        if line.error is not None:
            raise RuntimeError(f"Spark SQL: {line.error}")
        return line.rows


def _started(
    command: list[str], log: Path, processes: ExitStack, *, stdin: int, stdout: int | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Starts a process that ends with the demo, however that ends. It gets no settings of the user's own Astha."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output if stdout is None else stdout,
            stderr=output,
            env={**inherited, **(environment or {})},
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    processes.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """A process that reads stdin ends with it; others get a signal."""
    if process.stdin is not None:
        process.stdin.close()
    else:
        process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
