"""One table's trouble is its own, and a loop that fails begins again."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from registry.models import LakeTable
from tests.integration.components.snapshotter.conftest import Lake
from tests.integration.components.snapshotter.test_expiration import lifecycle_of, there
from tests.waiting import eventually


def damage_manifests(lake: Lake, table: LakeTable) -> None:
    loaded = lake.load(table)
    for manifest in loaded.metadata.snapshots[-1].manifests(loaded.io):
        Path(manifest.manifest_path.removeprefix("file://")).write_bytes(b"not Avro")


async def test_an_unreadable_manifest_keeps_only_its_own_tables_files(lake: Lake) -> None:
    bad, good = await lake.create("bad"), await lake.create("good")
    kept, gone = await lake.insert(bad, 1), await lake.insert(good, 2)
    await lake.update()
    await lake.remove(bad, kept)
    await lake.remove(good, gone)
    for table in (bad, good):
        for number in range(4):
            await lake.insert(table, 10 + number)
            await lake.update()
    damage_manifests(lake, bad)
    lake.clock.advance(timedelta(hours=2))
    reports = {report.table: report for report in await lifecycle_of(lake).clean()}
    assert reports["shop.bad"].problem is not None
    assert reports["shop.good"].problem is None
    assert there(gone) == [False]
    assert there(kept) == [True], "what nobody could judge is needed"
    lake.clock.advance(timedelta(days=30))
    await lake.snapshotter.upkeep()
    assert "shop.bad" in {problem.subject for problem in lake.snapshotter.problems()}


async def test_a_loop_that_fails_begins_again_and_shows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.snapshotter.subscriber._AGAIN_S", 0.01)
    calls: list[None] = []

    async def fail() -> None:
        calls.append(None)
        raise LookupError("a fault of ours")

    monkeypatch.setattr(lake.snapshotter, "upkeep", fail)
    await lake.snapshotter.stop()
    await lake.start()
    await eventually(lambda: len(calls) > 4, "it has begun again")
    assert [problem.subject for problem in lake.snapshotter.problems()] == ["upkeep"]
    with pytest.raises(RuntimeError, match="upkeep has failed"):
        await lake.snapshotter.on_health()
    monkeypatch.undo()
    await eventually(lambda: not list(lake.snapshotter.problems()), "it works again")
    assert await lake.snapshotter.on_health()
