"""`astha topics to-table`: a topic into a table, once or continuously.

PySpark and Arrow take seconds to load: they are imported by who uses them, not by `astha --help`.
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
from astha.cli.output import print_json
from astha.clock import SystemLoopClock
from astha.settings import Settings
from astha.wiring import context
from components.commands.topics.logging import log_to_stderr
from components.commands.topics.topics import topics_commands
from components.lib.streams.parsing import Duration, Size
from registry.connect import open_store
from registry.contract import MetadataStore

if TYPE_CHECKING:
    from components.commands.topic_to_table.runner import Runner
    from components.commands.topic_to_table.sink import TopicTable, Wish

__all__ = ["to_table_command", "topics_commands"]


@topics_commands.command("to-table", short_help="A topic into a table, exactly once.")
@click.argument("topic")
@click.argument("table")
@click.option("--group", help="Whose offsets tell how far it is.  [default: to-table:DATABASE.NAME]")
@click.option(
    "--values",
    type=click.Choice(["json", "record"]),
    default="json",
    show_default=True,
    help="json: values are objects, by column. record: columns key, value, offset, partition, timestamp, headers.",
)
@click.option(
    "--bad",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What to do with a record that is no row of the table. Skipped ones are counted and reported.",
)
@click.option("--max-bytes", type=Size(), default="256MiB", show_default=True, help="Of a round, as stored.")
@click.option("--skip-lost", is_flag=True, help="Go on at the first record there is if some were deleted meanwhile.")
@click.option("--follow", is_flag=True, help="At the end, wait for more, until interrupted.")
@click.option(
    "--every", type=Duration(), default="10s", show_default=True, help="With --follow: rounds are so far apart."
)
@click.option("--spark", "master", metavar="MASTER", help="local[N], spark://, sc://, ...; else the compactor's.")
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

    Files and the group's offsets are registered in one transaction: each record is in the table once, whatever is
    killed or repeated, and also if two of these run at once. Without --follow it ends at the end of the topic as it is
    now. Interrupted, it ends after the round; interrupted again, at once, and nothing of the round is in the table.

    \b
    Examples:
      astha topics to-table orders shop.orders
      astha topics to-table orders shop.orders --follow --every 30s --bad skip
      astha topics to-table clicks lake.raw_clicks --values record
    """
    from components.commands.topic_to_table.sink import Wish

    wish = Wish(
        topic=topic, table=table, group=group, values=cast("Literal['json', 'record']", values),
        bad=cast("Literal['stop', 'skip']", bad), max_bytes=max_bytes, skip_lost=skip_lost,
    )  # fmt: skip
    work = _Work(wish, master, None if not follow else (every or 0) / 1000, quiet=as_json)
    try:
        with log_to_stderr():
            finished = asyncio.run(work.run(reload()))
    except asyncio.CancelledError:
        raise Failure("interrupted: nothing of the last round is in the table", Exit.INTERRUPTED) from None
    work.print_result(as_json=as_json)
    if not finished:
        sys.exit(Exit.INTERRUPTED)


class _Work:
    """``every_s`` is None for who does not follow."""

    def __init__(self, wish: Wish, master: str | None, every_s: float | None, *, quiet: bool) -> None:
        self._wish = wish
        self._master = master
        self._every_s = every_s
        self._quiet = quiet
        self._job: TopicTable | None = None
        self._began = self._last = monotonic()
        self._rows = 0

    async def run(self, settings: Settings) -> bool:
        """False if it was stopped before its end."""
        from components.commands.topic_to_table.errors import BadRecord, RoundFailed
        from components.lib.lake.storage.objects import StorageUnavailable
        from components.lib.spark.errors import SparkError

        clock = SystemLoopClock()
        url = settings.registry.url.get_secret_value()
        store = await open_store(url, settings=settings.registry.store, clock=clock)
        try:
            return await self._run(settings, store, clock)
        except BadRecord as error:
            way_out = "nothing of its round is in the table; --bad skip goes on without it"
            raise Failure(f"{error}; {way_out}", Exit.PROBLEM) from error
        except (SparkError, StorageUnavailable) as error:
            raise Failure(settings.concealment()(str(error)), Exit.UNAVAILABLE) from error
        except RoundFailed as error:
            code = Exit.UNAVAILABLE if error.passing else Exit.PROBLEM
            raise Failure(settings.concealment()(str(error)), code) from error
        finally:
            await store.close()

    async def _run(self, settings: Settings, store: MetadataStore, clock: SystemLoopClock) -> bool:
        from components.commands.topic_to_table.runner import Runner
        from components.commands.topic_to_table.session import SparkHost, spark_settings
        from components.commands.topic_to_table.sink import TopicTable
        from components.lib.streams.read_context import open_reading

        host = SparkHost(spark_settings(settings, store, clock, self._master), settings)
        job = self._job = TopicTable(store, self._wish, host.run)
        runner = Runner(job, self._wish.topic, clock, report=self._report, trouble=self._trouble)
        await job.begin()
        try:
            with _signals(runner):
                self._say("starting Spark")
                await host.start()
                self._last = monotonic()
                if self._every_s is None:
                    return await runner.run_to_end()
                around = context(settings, store, clock)
                async with open_reading(around, settings, follow=True) as reading:
                    await runner.follow(reading, self._every_s)
                return True
        finally:
            await host.close()

    def print_result(self, *, as_json: bool) -> None:
        if self._job is None:
            return
        tally, wish = self._job.tally, self._wish
        seconds = round(monotonic() - self._began, 3)
        lag = 0 if self._job.standing is None else self._job.standing.lag()
        if as_json:
            who = {"topic": wish.topic, "table": wish.table, "group": wish.group_id}
            print_json({**who, **msgspec.structs.asdict(tally), "lag": lag, "seconds": seconds})
            return
        asides = [
            f"{count:,} {what}"
            for count, what in (
                (tally.skipped, "bad records skipped"),
                (tally.lost, "deleted before they were read"),
                (tally.overtaken, "rounds left to another that was quicker"),
            )
            if count
        ]
        told = "".join(f", {aside}" for aside in asides)
        click.echo(f"{wish.table}: {tally.rows:,} rows in {tally.files:,} files{told}; lag {lag:,} ({seconds:.1f} s)")

    def _report(self) -> None:
        if self._job is None or self._job.standing is None:
            return
        now, rows = monotonic(), self._job.tally.rows
        rate = (rows - self._rows) / max(now - self._last, 1e-3)
        skipped = f", {self._job.tally.skipped:,} skipped" if self._job.tally.skipped else ""
        self._say(f"{rows:,} rows ({rate:,.0f} rows/s){skipped}, lag {self._job.standing.lag():,}")
        self._last, self._rows = now, rows

    def _trouble(self, error: Exception, pause_s: float) -> None:
        """Said to machines' callers too: they wait without knowing why."""
        click.echo(f"{self._wish.table}: {error}; trying again in {pause_s:.0f} s", err=True)

    def _say(self, words: str) -> None:
        if not self._quiet:
            click.echo(f"{self._wish.table}: {words}", err=True)


@contextmanager
def _signals(runner: Runner) -> Iterator[None]:
    """The first one stops after the round, the second at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    heard = 0

    def hear() -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            click.echo("stopping after this round; once more to stop at once", err=True)
            runner.stop()
        elif task is not None:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
