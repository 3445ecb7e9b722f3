"""The updater in a real daemon, over both databases."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import Stamp, live_digest
from registry.models import LakeTable
from tests.fixtures.daemons import RunDaemon
from tests.integration.astha.processes import Astha
from tests.integration.components.iceberg_updater.conftest import Lake
from tests.parquet_files import BY_DAY, PLAIN
from tests.waiting import eventually


async def agrees(lake: Lake, table: LakeTable) -> bool:
    """Whether Iceberg has exactly the registry's files, by its manifests and by its stamp."""
    loaded = await asyncio.to_thread(lake.tables.load, table)
    if loaded is None:
        return False
    digest = Digest()
    async for file in lake.store.stream_files(table.id):
        digest.add(LiveFile.of(file))
    live = await asyncio.to_thread(live_digest, loaded)
    return live == digest == Stamp.read(loaded.metadata).digest


async def test_registered_files_reach_iceberg(lake: Lake, run_daemon: RunDaemon) -> None:
    await lake.updater.stop()
    early = await lake.create("early")
    await lake.insert(early, 1)
    updater = lake.new_updater()
    running = await run_daemon(lake.url, {"iceberg_updater": updater})
    await running.live()
    late = await lake.create("late")
    small = [file for number in range(5) for file in await lake.insert(late, number)]
    await lake.compact(late, small, *range(5))
    await lake.insert(early, 2)
    await running.until(lambda: agrees(lake, early), "early in agreement")
    await running.until(lambda: agrees(lake, late), "late in agreement")
    assert lake.ids(late) == list(range(5))
    assert lake.ids(early) == [1, 2]
    assert "replace" in lake.operations(late)
    renamed = await lake.rename(late, "later")
    await running.until(lambda: agrees(lake, renamed), "renamed")
    await lake.drop(early)
    await running.until(lambda: lake.tables.load(early) is None, "dropped")
    await running.stop()


@pytest.mark.slow
async def test_survives_repeated_kills(lake: Lake, tmp_path: Path, backend: str) -> None:
    """Kills the daemon with SIGKILL at random moments while tables are written, compacted and deleted from."""
    await lake.updater.stop()
    (tmp_path / "subscriptions.yaml").write_text(
        "components:\n  iceberg_updater:\n"
        "    tables: [table_metadata, table_files, table_delete_files, iceberg_commits]\n"
    )
    astha = Astha(tmp_path, lake.url, {"ASTHA_LEASE__TTL_S": "1", "ASTHA_SOURCE__STATUS_INTERVAL_S": "0.1"})
    chance = random.Random(5)
    tables = [await lake.create("plain"), await lake.create("daily", BY_DAY)]
    expected: dict[int, set[int]] = {table.id: set() for table in tables}
    numbers = iter(range(1_000_000))

    async def write() -> None:
        table = chance.choice(tables)
        schema = PLAIN if table.name == "plain" else BY_DAY
        files = await lake.store.list_files(table.id, limit=20)
        dice = chance.random()
        if dice < 0.7 or len(files) < 5:
            ids = [next(numbers) for _ in range(3)]
            await lake.insert(table, *ids, schema=schema)
            expected[table.id].update(ids)
        elif table.name == "plain" and dice < 0.85:
            kept = await rows_of(lake, table, [file.file_path for file in files])
            await lake.compact(table, files, *kept)
        else:
            gone = await rows_of(lake, table, [files[0].file_path])
            await lake.remove(table, files[:1])
            expected[table.id].difference_update(gone)

    for _ in range(5):
        daemon = astha.run()
        for _ in range(chance.randrange(10, 40)):
            await write()
            await asyncio.sleep(chance.random() * 0.1)
        daemon.send(signal.SIGKILL)
        await asyncio.to_thread(daemon.ended)
    daemon = astha.run()
    try:
        for table in tables:
            await eventually(lambda table=table: agrees(lake, table), f"{table.name} in agreement", 90)  # type: ignore[misc]
            assert lake.ids(table) == sorted(expected[table.id])
    finally:
        daemon.send(signal.SIGTERM)
        await asyncio.to_thread(daemon.ended)
        for started in astha.started:
            started.close()


async def rows_of(lake: Lake, table: LakeTable, paths: list[str]) -> list[int]:
    """Read from the files themselves: Iceberg may be behind."""
    found: list[int] = []
    for path in paths:
        found += pq.read_table(path.removeprefix("file://"), columns=["id"])["id"].to_pylist()
    return found
