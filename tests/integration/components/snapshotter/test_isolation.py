"""A failure of one table does not affect others, and a background loop that fails is restarted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from astha.backoff import Backoff
from registry.models import LakeTable
from tests.integration.components.snapshotter.conftest import Lake
from tests.integration.components.snapshotter.test_expiration import maintenance_of, there
from tests.waiting import eventually


def damage_manifests(lake: Lake, table: LakeTable) -> None:
    loaded = lake.load(table)
    for manifest in loaded.metadata.snapshots[-1].manifests(loaded.io):
        Path(manifest.manifest_path.removeprefix("file://")).write_bytes(b"not Avro")


async def test_an_unreadable_manifest_keeps_only_the_files_of_its_table(lake: Lake) -> None:
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
    reports = {report.table: report for report in await maintenance_of(lake).clean()}
    assert reports["shop.bad"].problem is not None
    assert reports["shop.good"].problem is None
    assert there(gone) == [False]
    assert there(kept) == [True], "files without a decision are kept"
    lake.clock.advance(timedelta(days=30))
    await lake.snapshotter.maintain()
    assert "shop.bad" in {problem.subject for problem in lake.snapshotter.problems()}


async def test_a_failing_loop_is_restarted_and_reported(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astha.tasks._RESTART", Backoff(0.01, 0.02))
    calls: list[None] = []

    async def fail() -> None:
        calls.append(None)
        raise LookupError("a bug")

    monkeypatch.setattr(lake.snapshotter, "maintain", fail)
    await lake.snapshotter.stop()
    await lake.start()
    await eventually(lambda: len(calls) > 4, "restarted")
    assert [problem.subject for problem in lake.snapshotter.problems()] == ["maintenance"]
    with pytest.raises(RuntimeError, match="maintenance has failed"):
        await lake.snapshotter.on_health()
    monkeypatch.undo()
    await eventually(lambda: not list(lake.snapshotter.problems()), "it works again")
    assert await lake.snapshotter.on_health()
