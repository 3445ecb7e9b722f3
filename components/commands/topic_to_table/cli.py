"""`astha topics to-table`: copies a topic into a table, once or continuously.

PySpark and Arrow take seconds to load, so they are imported where they are used, not for `astha --help`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Literal, cast

import click
import msgspec

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import counted, print_json
from astha.cli.progress import progress
from astha.clock import SystemLoopClock
from astha.lake_locations import located
from astha.settings import Settings
from astha.wiring import context
from components.commands.parameters import DurationParam, SizeParam
from components.commands.stderr_logging import log_to_stderr
from registry.connect import open_store
from registry.contract import MetadataStore

if TYPE_CHECKING:
    from components.commands.topic_to_table.runner import SinkRunner
    from components.commands.topic_to_table.sink import SinkOptions, TopicSink

__all__ = ["to_table_command"]


@click.command("to-table", short_help="Copy a topic into a table, exactly once.")
@click.argument("topic")
@click.argument("table")
@click.option("--group", help="Consumer group that holds the offsets.  [default: to-table:DATABASE.NAME]")
@click.option(
    "--values",
    type=click.Choice(["json", "record"]),
    default="json",
    show_default=True,
    help="json: values are JSON objects with the columns. record: the columns are key, value, offset, partition,"
    " timestamp and headers.",
)
@click.option(
    "--bad",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What to do with a record that is not a row of the table. Skipped records are counted and reported.",
)
@click.option(
    "--max-bytes", type=SizeParam(), default="256MiB", show_default=True, help="Most bytes per micro-batch, as stored."
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Continue at the first retained record if others were deleted before they were read.",
)
@click.option("--follow", is_flag=True, help="At the end, wait for more records, until interrupted.")
@click.option(
    "--every",
    type=DurationParam(),
    default="10s",
    show_default=True,
    help="With --follow: least time between two micro-batches.",
)
@click.option("--spark", "master", metavar="MASTER", help="local[N], spark://, sc://, ...  [default: the compactor's]")
@settings_options
@json_option
def to_table_command(
    topic: str,
    table: str,
    group: str | None,
    values: str,
    bad: str,
    max_bytes: int,
    skip_lost: bool,
    follow: bool,
    every: int | None,
    master: str | None,
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Insert the records of TOPIC into TABLE, a database.name, on Spark.

    Files and the group's offsets are registered in one transaction: each record is in the table exactly once, whatever
    is killed or repeated, also if two of these run at a time. Without --follow it stops at the topic's present end. An
    interrupt stops it after the micro-batch; a second one stops it at once, without rows of that micro-batch.

    \b
    Examples:
      astha topics to-table orders shop.orders
      astha topics to-table orders shop.orders --follow --every 30s --bad skip
      astha topics to-table clicks lake.raw_clicks --values record
    """
    from components.commands.topic_to_table.sink import SinkOptions

    chosen = SinkOptions(
        topic=topic, table=table, group=group, values=cast("Literal['json', 'record']", values),
        bad=cast("Literal['stop', 'skip']", bad), max_bytes=max_bytes, skip_lost=skip_lost,
    )  # fmt: skip
    command = _Command(chosen, master, None if not follow else (every or 0) / 1000, quiet=as_json)
    try:
        with log_to_stderr():
            finished = asyncio.run(command.run(reload()))
    except asyncio.CancelledError:
        raise Failure("interrupted: no row of the last micro-batch is in the table", Exit.INTERRUPTED) from None
    command.print_result(as_json=as_json)
    if not finished:
        sys.exit(Exit.INTERRUPTED)


class _Command:
    """``every_s`` is None without --follow."""

    def __init__(self, options: SinkOptions, master: str | None, every_s: float | None, *, quiet: bool) -> None:
        self._options = options
        self._master = master
        self._every_s = every_s
        self._quiet = quiet
        self._sink: TopicSink | None = None
        self._began = self._last = monotonic()
        self._rows = 0

    async def run(self, settings: Settings) -> bool:
        """Returns False if it was stopped before its end."""
        from components.commands.topic_to_table.errors import BadRecord, MicroBatchFailed
        from components.lib.lake.storage.objects import StorageUnavailable
        from components.lib.spark.errors import SparkError

        clock = SystemLoopClock()
        url = settings.registry.url.get_secret_value()
        store = await open_store(url, settings=settings.registry.store, clock=clock)
        try:
            return await self._run(await located(settings, store, record=True), store, clock)
        except BadRecord as error:
            way_out = "no row of its micro-batch is in the table; --bad skip continues without it"
            raise Failure(f"{error}; {way_out}", Exit.PROBLEM) from error
        except (SparkError, StorageUnavailable) as error:
            raise Failure(settings.redactor()(str(error)), Exit.UNAVAILABLE) from error
        except MicroBatchFailed as error:
            code = Exit.UNAVAILABLE if error.transient else Exit.PROBLEM
            raise Failure(settings.redactor()(str(error)), code) from error
        finally:
            await store.close()

    async def _run(self, settings: Settings, store: MetadataStore, clock: SystemLoopClock) -> bool:
        from components.commands.topic_to_table.runner import SinkRunner
        from components.commands.topic_to_table.session import SparkRunner, spark_settings
        from components.commands.topic_to_table.sink import TopicSink
        from components.lib.streams.read_context import open_read_context

        spark = SparkRunner(spark_settings(settings, self._master), settings)
        sink = self._sink = TopicSink(store, self._options, spark.run)
        runner = SinkRunner(sink, self._options.topic, clock, report=self._report, on_retry=self._on_retry)
        await sink.begin()
        try:
            with _signals(runner):
                with progress(f"{self._options.table}: starting Spark", quiet=self._quiet):
                    await spark.start()
                self._last = monotonic()
                if self._every_s is None:
                    return await runner.run_to_end()
                async with open_read_context(context(settings, store, clock), settings, follow=True) as reading:
                    await runner.follow(reading, self._every_s)
                return True
        finally:
            await spark.close()

    def print_result(self, *, as_json: bool) -> None:
        if self._sink is None:
            return
        totals, options = self._sink.totals, self._options
        seconds = round(monotonic() - self._began, 3)
        lag = 0 if self._sink.progress is None else self._sink.progress.lag()
        if as_json:
            who = {"topic": options.topic, "table": options.table, "group": options.group_id}
            print_json({**who, **msgspec.structs.asdict(totals), "lag": lag, "seconds": seconds})
            return
        notes = [
            f"{count:,} {what}"
            for count, what in (
                (totals.skipped, "bad records skipped"),
                (totals.lost, "deleted before they were read"),
                (totals.overtaken, "micro-batches that another process registered first"),
            )
            if count
        ]
        listed = "".join(f", {note}" for note in notes)
        click.echo(
            f"{options.table}: {counted(totals.rows, 'row')} in {counted(totals.files, 'file')}{listed}; lag {lag:,} "
            f"({seconds:.1f} s)"
        )

    def _report(self) -> None:
        if self._sink is None or self._sink.progress is None:
            return
        now, rows = monotonic(), self._sink.totals.rows
        rate = (rows - self._rows) / max(now - self._last, 1e-3)
        skipped = f", {self._sink.totals.skipped:,} skipped" if self._sink.totals.skipped else ""
        self._print(f"{rows:,} rows ({rate:,.0f} rows/s){skipped}, lag {self._sink.progress.lag():,}")
        self._last, self._rows = now, rows

    def _on_retry(self, error: Exception, wait_s: float) -> None:
        """Printed with --json too: the caller would wait without knowing why."""
        click.echo(f"{self._options.table}: {error}; trying again in {wait_s:.0f} s", err=True)

    def _print(self, message: str) -> None:
        if not self._quiet:
            click.echo(f"{self._options.table}: {message}", err=True)


@contextmanager
def _signals(runner: SinkRunner) -> Iterator[None]:
    """The first signal stops after the micro-batch, the second at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    received = 0

    def receive() -> None:
        nonlocal received
        received += 1
        if received == 1:
            click.echo("stopping after this micro-batch; interrupt again to stop at once", err=True)
            runner.stop()
        elif task is not None:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, receive)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
