from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from types import FrameType

import psycopg
from sqlalchemy import make_url

from components.commands.demo import catalog, compaction, daemon, fanout, lake, registry, streams
from components.commands.demo.stage import Stage
from registry.embedded_postgres import EmbeddedPostgres
from registry.errors import RegistryError, Unavailable


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description="Show Astha at work. Nothing is left behind.")
    parser.add_argument(
        "--segments", type=_positive, default=1_000_000, metavar="N", help="number of segments to write"
    )
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)  # so that a server and a directory of ours don't outlive us
    stage = Stage()
    try:
        play(wanted.segments, stage)
    except RegistryError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    return 0


def play(segments: int, stage: Stage) -> None:
    started = monotonic()
    outcomes: dict[str, registry.RegistryOutcome] = {}
    with tempfile.TemporaryDirectory(prefix="astha-demo-") as directory, ExitStack() as servers:
        urls = {"SQLite": f"sqlite:///{Path(directory) / 'registry.db'}"}
        try:
            server = servers.enter_context(EmbeddedPostgres())
        except Unavailable as error:
            stage.say(f"PostgreSQL cannot be started, the demo continues on SQLite alone: {error}")
        else:
            stage.say(f"PostgreSQL started from {server.bin}")
            urls["PostgreSQL"] = server.url("postgres")
        for name, url in urls.items():
            outcomes[name] = asyncio.run(registry.show(name, url, segments, stage))
        stage.show_cells("Registry", {name: outcome.cells() for name, outcome in outcomes.items()})
        backend, url = _another_database(urls, directory, "daemon")
        stage.say(f"the daemon, on {backend}: three components, four writers")
        delivered = asyncio.run(daemon.show(url, stage))
        stage.show_cells("Daemon", {outcome.name: outcome.cells() for outcome in delivered})
        backend, url = _another_database(urls, directory, "lake")
        stage.say(f"the lake, with its registry on {backend}: four writers, Iceberg, and another engine that reads")
        kept = asyncio.run(lake.show(url, Path(directory) / "warehouse", stage))
        stage.show_cells("Lake table", {lake.TABLE: kept.cells()})
        backend, url = _another_database(urls, directory, "compaction")
        stage.say(f"compaction, with its registry on {backend}: small files, a slow query, merged on Spark")
        compacted = asyncio.run(compaction.show(url, Path(directory) / "warehouse", stage))
        stage.show_cells(f"Compaction of {compaction.TABLE}", compacted.cells())
        stage.say(f"registry, Iceberg and storage agree: {'yes' if compacted.equal else 'NO'}")
        backend, url = _another_database(urls, directory, "engines")
        stage.say(f"the catalog, with its registry on {backend}: Spark SQL and DuckDB write one table")
        served = asyncio.run(catalog.show(url, Path(directory), stage))
        stage.show_cells("Table written by other engines", {catalog.TABLE: served.cells()})
        backend, url = _another_database(urls, directory, "streams")
        stage.say(f"streams, with their registry on {backend}: three agents, a consumer group, and a killed agent")
        streamed = asyncio.run(streams.show(url, Path(directory) / "warehouse", stage))
        stage.show_cells("Topic", {streams.TOPIC: streamed.cells()})
        backend, url = _another_database(urls, directory, "fanout")
        stage.say(f"fan-out, with its registry on {backend}: a change read by clients without any code of ours")
        asyncio.run(fanout.show(url, Path(directory), stage))
    stage.say(f"Everything is removed again. The demo took {monotonic() - started:.0f} s.")


def _another_database(urls: dict[str, str], directory: str, name: str) -> tuple[str, str]:
    """Returns an empty registry: on PostgreSQL with logical replication, if it could be started."""
    if "PostgreSQL" not in urls:
        return "SQLite", f"sqlite:///{Path(directory) / name}.db"
    with psycopg.connect(urls["PostgreSQL"], autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return "PostgreSQL", str(make_url(urls["PostgreSQL"]).set(database=name))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
