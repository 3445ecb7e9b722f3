"""Upload intents and their cleaner on real registries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astha.subscribers.context import LakeSettings
from components.lib.lake.registration.upload_intents import CleanupResult, clean_intents, purpose_of, table_id_of
from components.lib.lake.storage.objects import Objects, StorageRefused
from components.lib.lake.storage.roots import Roots
from registry.contract import MetadataStore
from tests.doubles.clock import ManualClock
from tests.lake import files_below
from tests.samples import TABLE, file

HOUR_MS = 3_600_000


def test_a_purpose_contains_the_table_id() -> None:
    assert table_id_of(purpose_of("insert", 17)) == 17
    assert table_id_of("segments") is None
    assert table_id_of("insert x") is None


async def test_unregistered_objects_are_deleted(
    store: MetadataStore, clock: ManualClock, warehouse: Path, lake: LakeSettings
) -> None:
    objects = Objects(lake)
    table = await store.create_table("db", "t", f"file://{warehouse}/t", TABLE)
    old, young, live, never = (f"file://{warehouse}/t/{name}" for name in ("old", "young", "live", "never"))
    for path in (old, young, live):
        await objects.put(path, b"x")
    purpose = purpose_of("insert", table.id)
    await store.record_intents([old, never], purpose=purpose, owner="w")
    await store.add_files(table.id, [file(live)])
    await store.record_intents([live], purpose=purpose, owner="w")  # one too many
    clock.advance(HOUR_MS)
    await store.record_intents([young], purpose=purpose, owner="w")

    found = await clean_intents(store, objects, HOUR_MS, "cleaner", dry_run=True)
    assert found == CleanupResult(deleted=[never, old], kept=[live], failed=[])
    assert files_below(warehouse) == {old, young, live}
    assert await clean_intents(store, objects, HOUR_MS, "cleaner") == found
    assert files_below(warehouse) == {young, live}
    assert [intent.path for intent in await store.list_stale_intents(0)] == [young]
    assert await clean_intents(store, objects, HOUR_MS, "cleaner") == CleanupResult([], [], [])


class FailingDeleter:
    """Fails to delete some of its objects."""

    def __init__(self, *kept: str) -> None:
        self.kept = kept
        self.deleted: list[str] = []
        self.roots = Roots(["s3://b"])

    async def delete_many(self, uris: Sequence[str], *, roots: Roots | None = None) -> None:
        if set(uris) & set(self.kept):
            raise StorageRefused("no")
        self.deleted += uris


async def test_an_object_that_cannot_be_deleted_keeps_its_intent(store: MetadataStore, clock: ManualClock) -> None:
    paths = [f"s3://b/{number}" for number in range(5)]
    await store.record_intents(paths, purpose="insert", owner="w")
    clock.advance(10)
    objects = FailingDeleter(paths[2])
    cleaned = await clean_intents(store, objects, 0, "cleaner")
    assert cleaned == CleanupResult(deleted=[*paths[:2], *paths[3:]], kept=[], failed=[paths[2]])
    assert objects.deleted == cleaned.deleted
    assert [(intent.path, intent.owner) for intent in await store.list_stale_intents(0)] == [(paths[2], "cleaner")]
    assert (await clean_intents(store, FailingDeleter(), 0, "another")).deleted == [paths[2]]


async def test_only_objects_below_known_roots_are_deleted(
    store: MetadataStore, clock: ManualClock, tmp_path: Path
) -> None:
    """Roots are the warehouse, lake.roots and tables' locations; an intent for anything else stays, with its file."""
    for name in ("warehouse", "streams", "table", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "warehouse" / "link").symlink_to(tmp_path / "outside")
    lake = LakeSettings(warehouse=str(tmp_path / "warehouse"), roots=(str(tmp_path / "streams"),))
    await store.create_table("db", "t", f"file://{tmp_path}/table", TABLE)
    good = [f"file://{tmp_path}/{name}/f" for name in ("streams", "table", "warehouse")]
    bad = [
        *(f"file://{tmp_path}/{path}" for path in ("outside/f", "table/../outside/f", "warehouse/link/f")),
        "nonsense", "s3://bucket/f",
    ]  # fmt: skip
    for path in [*good, bad[0]]:
        await Objects(lake).put(path, b"x")
    await store.record_intents([*good, *bad], purpose="insert", owner="w")
    clock.advance(10)
    planned = await clean_intents(store, Objects(lake), 0, "cleaner", dry_run=True)
    cleaned = await clean_intents(store, Objects(lake), 0, "cleaner")
    assert planned == cleaned
    assert (cleaned.deleted, set(cleaned.refused)) == (good, set(bad))
    assert "lake.roots" in cleaned.refused[bad[0]]
    assert files_below(tmp_path) == {bad[0]}
    assert {intent.path for intent in await store.list_stale_intents(0)} == set(bad)


async def test_only_objects_below_known_roots_are_deleted_on_s3(
    store: MetadataStore, clock: ManualClock, s3_lake: LakeSettings
) -> None:
    bucket = s3_lake.warehouse.rpartition("/")[0]
    objects = Objects(s3_lake)
    good, bad = f"{s3_lake.warehouse}/t/f", f"{bucket}/precious"
    for path in (good, bad):
        await objects.put(path, b"x")
    sly = f"{s3_lake.warehouse}/%2e%2e/precious"
    await store.record_intents([good, bad, sly], purpose="insert", owner="w")
    clock.advance(10)
    cleaned = await clean_intents(store, objects, 0, "cleaner")
    assert (cleaned.deleted, set(cleaned.refused)) == ([good], {bad, sly})
    assert (await objects.exists(good), await objects.exists(bad)) == (False, True)
