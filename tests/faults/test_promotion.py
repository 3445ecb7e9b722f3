"""A standby is promoted: the daemon finds another history, refreshes everybody and goes on, by itself."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import psycopg
import pytest

from astha.testing import RecordingSubscriber
from registry.embedded import EmbeddedPostgres
from tests.doubles.proxy import PostgresProxy
from tests.fixtures.daemons import RunDaemon
from tests.fixtures.stores import OpenStore

pytestmark = pytest.mark.slow


def make_standby(primary: EmbeddedPostgres, directory: Path) -> EmbeddedPostgres:
    """A copy that follows the primary."""
    standby = EmbeddedPostgres(directory, {"fsync": "off", "hot_standby": "on"})
    standby._prepare_directory()
    program = primary.bin / "pg_basebackup"
    if not program.exists():
        pytest.fail(f"{primary.bin} has no pg_basebackup: choose other binaries with ASTHA_POSTGRES_BIN")
    command = [str(program), "-d", primary.url("postgres"), "-D", str(directory / "data"), "-R", "-c", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **standby._run_as())
    assert done.returncode == 0, done.stderr
    (directory / "data").chmod(0o700)
    standby.start()
    return standby


async def test_a_promoted_standby(
    own_server: EmbeddedPostgres, scratch: Path, opened: OpenStore, run_daemon: RunDaemon
) -> None:
    subscriber = RecordingSubscriber("consumer_groups")
    standby = await asyncio.to_thread(make_standby, own_server, scratch / "standby")
    try:
        async with PostgresProxy("127.0.0.1", own_server.port) as proxy:
            url = proxy.url(own_server.url("postgres"))
            running = await run_daemon(url, {"a": subscriber}, lease_s=1.0)
            await running.live()
            store = await opened(own_server.url("postgres"))
            for number in range(10):
                await store.ensure_consumer_group(f"before {number}")
            await running.agree(store)
            await asyncio.to_thread(follow, own_server, standby)
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(promote, standby)
            proxy._target = ("127.0.0.1", standby.port)  # as a virtual address would move
            promoted = await opened(standby.url("postgres"))
            await promoted.ensure_consumer_group("after")
            await running.agree(promoted)
            await promoted.ensure_consumer_group("streamed")
            await subscriber.until(lambda: "streamed" in repr(subscriber.events[-1:]))
            await running.stop()
    finally:
        standby.stop()


def follow(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """Wait until the standby has everything."""
    with psycopg.connect(primary.url("postgres"), autocommit=True) as connection:
        (wanted,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
    with psycopg.connect(standby.url("postgres"), autocommit=True) as connection:
        for _ in range(3_000):
            query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn, pg_sleep(0.01)"
            (there, _) = connection.execute(query, [wanted]).fetchone() or (False, None)
            if there:
                return
    raise AssertionError("the standby never caught up")


def promote(standby: EmbeddedPostgres) -> None:
    with psycopg.connect(standby.url("postgres"), autocommit=True) as connection:
        (done,) = connection.execute("SELECT pg_promote(true, 60)").fetchone() or (False,)
        assert done
