"""`astha insert --id` of two files, killed with SIGKILL at points before, at and after each registration, on both
databases. The repeated command completes what was not done, changes nothing of what was, and leaves no file behind.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from registry.contract import MetadataStore
from tests.contracts.contents import assert_counted
from tests.doubles.clock import ManualClock
from tests.integration.astha.processes import ROOT
from tests.integration.components.lib.storage_manager.killed_inserts import POINTS
from tests.integration.components.lib.storage_manager.test_cli import READ, ROWS, insert, lines, written
from tests.lake import create_table, files_below, read_rows

DONE = {
    "before_first_registration": 0,
    "first_registered": 1,
    "second_file_written": 1,
    "second_registered": 2,
    "before_the_answer": 2,
}
"""How many of the two files are in the table when the process ends."""


@pytest.mark.slow
async def test_a_killed_insert_is_repeated(
    url: str, store: MetadataStore, clock: ManualClock, warehouse: Path, tmp_path: Path
) -> None:
    tables = {point: await create_table(store, warehouse, point) for point in POINTS}
    files = [written(tmp_path / f"{name}.jsonl", lines(row)) for name, row in zip("ab", ROWS, strict=True)]
    program = [sys.executable, "-m", "tests.integration.components.lib.storage_manager.killed_inserts", url]
    ended = await asyncio.to_thread(
        subprocess.run, [*program, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    assert ended.stdout.splitlines() == [f"{point} -9" for point in POINTS], ended.stderr

    for point, table in tables.items():
        arguments: list[str | Path] = [f"shop.{point}", *files, "--id", "monday", "--json"]
        assert len(await read_rows(store, table)) == DONE[point], point
        for done in (DONE[point], 2) if point == "first_registered" else (DONE[point],):
            result = await insert(url, *arguments)
            assert result.exit_code == 0, f"{point}: {result.output}"
            inserts = json.loads(result.stdout)["inserts"]
            assert [one["repeated"] for one in inserts] == [number < done for number in range(2)], point
            assert sorted(await read_rows(store, table), key=lambda row: int(row["id"])) == READ, point
        await assert_counted(store, table.id)

    registered = {file.file_path for table in tables.values() async for file in store.stream_files(table.id)}
    left = files_below(warehouse) - registered
    clock.advance(10**13)  # the command recorded them by the real clock
    assert left <= {intent.path for intent in await store.list_stale_intents(0)}
    assert left, "a file was written and not registered at some point"
