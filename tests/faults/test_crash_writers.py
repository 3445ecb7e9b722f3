"""An insert whose process dies is registered or cleaned, never half."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from astha.subscribers import LakeSettings
from components.lib.lake.registration.upload_intents import clean_intents
from components.lib.lake.storage.objects import Objects
from registry.connect import open_store
from registry.contract import MetadataStore
from tests.contracts.contents import assert_counted
from tests.faults.crash_writers import Order
from tests.samples import TABLE
from tests.waiting import eventually

OLD_MS = 20_000
"""Older than any writer gets, so that the cleaner that runs beside them takes nothing from the living."""


async def clean_beside(store: MetadataStore, objects: Objects, deleted: list[str]) -> None:
    while True:
        deleted += (await clean_intents(store, objects, OLD_MS, "beside")).deleted
        await asyncio.sleep(0.2)


async def run_writers(order: Order) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.crash_writers", msgspec.json.encode(order).decode()
    )
    try:
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def check(url: str, directory: Path, writers: int, seed: int) -> None:
    deleted: list[str] = []
    store, objects = await open_store(url), Objects(LakeSettings())
    try:
        table = await store.create_table("db", "t", f"file://{directory}", TABLE)
        data, notes = directory / "data", directory / "acknowledged"
        cleaning = asyncio.create_task(clean_beside(store, objects, deleted))
        await run_writers(Order(url, str(data), str(notes), table.id, seed, writers))
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)

        async def clean() -> bool:
            """A server may still be at the last statement of a dead process: rows that it has locked are skipped."""
            deleted.extend((await clean_intents(store, objects, 0, "afterwards")).deleted)
            return not await store.list_stale_intents(0)

        await eventually(clean, "no intents left")
        registered = {file.file_path async for file in store.stream_files(table.id)}
        acknowledged = notes.read_text().splitlines()
        assert registered == {f"file://{path}" for path in data.iterdir()}
        assert deleted  # some died before they had registered
        assert registered.isdisjoint(deleted)
        assert len(acknowledged) == len(set(acknowledged)) > 0
        assert set(acknowledged) <= registered
        await assert_counted(store, table.id)
    finally:
        await store.close()


async def test_files_and_registry_agree_after_every_death(url: str, tmp_path: Path) -> None:
    await check(url, tmp_path, writers=6, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_files_and_registry_agree_after_many_deaths(url: str, tmp_path: Path, seed: int) -> None:
    await check(url, tmp_path, writers=30, seed=seed)
