"""After random operations every retained snapshot is readable, and each tag still names the same rows."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from registry.models import LakeTable, TableFile
from tests.integration.components.snapshotter.conftest import Lake
from tests.integration.components.snapshotter.test_expiration import maintenance_of, there
from tests.integration.components.snapshotter.test_rollback import files_of, roll_back, rollback_of


class RandomOperations:
    """Operations in random order; the updater runs only when `update` is chosen."""

    def __init__(self, lake: Lake, table: LakeTable, chance: random.Random) -> None:
        self.lake, self.table, self.chance = lake, table, chance
        self.maintenance = maintenance_of(lake, keep=3)
        self.rows: dict[str, list[int]] = {}  # ids by live file
        self.named: dict[str, list[int]] = {}
        self.next_id = 0
        self.deleted = 0

    async def live(self) -> list[TableFile]:
        return list((await files_of(self.lake, self.table)).values())

    async def insert(self) -> None:
        ids = list(range(self.next_id, self.next_id + self.chance.randint(1, 3)))
        self.next_id += len(ids)
        self._note(await self.lake.insert(self.table, *ids), ids)

    async def remove(self) -> None:
        live = await self.live()
        if live:
            await self.lake.remove(self.table, self.chance.sample(live, self.chance.randint(1, min(2, len(live)))))

    async def compact(self) -> None:
        live = await self.live()
        if len(live) >= 2:
            old = self.chance.sample(live, self.chance.randint(2, min(4, len(live))))
            ids = sorted(number for file in old for number in self.rows[file.file_path])
            self._note(await self.lake.compact(self.table, old, *ids), ids)

    async def update(self) -> None:
        await self.lake.update()

    async def tag(self) -> None:
        if not self.next_id:
            return
        name = f"v{len(self.named)}"
        expected = await self._now()
        await self.lake.snapshot(self.table, name)
        self.named[name] = expected

    async def expire(self) -> None:
        await self.maintenance.expire(self.table)

    async def clean(self) -> None:
        for report in await self.maintenance.clean():
            assert report.problem is None
            self.deleted += len(report.removed)

    async def wait(self) -> None:
        self.lake.clock.advance(timedelta(minutes=self.chance.choice([10, 40, 90])))

    async def roll_back(self) -> None:
        tags = [row.tag for row in await self.lake.store.list_snapshots(self.table.id) if row.status == "created"]
        if not tags:
            return
        name = self.chance.choice(tags)
        assert name is not None
        if self.chance.random() < 0.5:
            await roll_back(self.lake, self.table, name)
        else:  # the updater runs later
            before = await files_of(self.lake, self.table)
            await rollback_of(self.lake).roll_back(self.table, name)
            await self.lake.tell_files(self.table, before)
        assert await self._now() == self.named[name]

    async def check(self) -> None:
        await asyncio.to_thread(self._check)
        assert all(there(await self.live()))
        created = {row.tag: row for row in await self.lake.store.list_snapshots(self.table.id, status="created")}
        tags = self.lake.tags(self.table) if created else {}
        for name, row in created.items():
            assert name is not None
            assert tags[name] == row.snapshot_id
            assert self.lake.ids(self.table, row.snapshot_id) == self.named[name], name

    def _check(self) -> None:
        found = self.lake.tables.load(self.table)
        for snapshot in [] if found is None else found.metadata.snapshots:
            self.lake.ids(self.table, snapshot.snapshot_id)

    async def _now(self) -> list[int]:
        return sorted(number for file in await self.live() for number in self.rows[file.file_path])

    def _note(self, files: list[TableFile], ids: list[int]) -> None:
        (file,) = files
        self.rows[file.file_path] = ids


@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 25), *(pytest.param(seed, 80, marks=pytest.mark.slow) for seed in range(2, 5))]
)
async def test_every_retained_snapshot_can_be_read(lake: Lake, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    ops = RandomOperations(lake, await lake.create(), chance)
    choices = [ops.insert] * 4 + [ops.compact] * 3 + [ops.update] * 4 + [ops.tag] * 2 + [ops.wait] * 3
    choices += [
        ops.remove,
        ops.expire,
        ops.expire,
        ops.clean,
        ops.clean,
        ops.roll_back,
    ]
    for _ in range(steps):
        await chance.choice(choices)()
        await ops.check()
    await lake.update()
    for _ in range(2):
        await ops.wait()
        lake.clock.advance(timedelta(hours=2))
        await ops.expire()
    await ops.clean()
    await ops.check()
    await lake.require_agreement(ops.table)
    assert ops.deleted, "nothing was deleted, so nothing was tested"
