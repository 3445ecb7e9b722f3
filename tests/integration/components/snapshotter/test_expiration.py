from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from components.lib.lake.storage.objects import Objects
from components.snapshotter import tags
from components.snapshotter.cli_context import call
from components.snapshotter.expiration import SnapshotExpiration
from components.snapshotter.file_cleanup import FileCleanup
from components.snapshotter.policy import SnapshotPolicy
from components.snapshotter.retention import RetentionReport
from registry.errors import Unavailable
from registry.inputs import FileDraft
from registry.models import LakeTable, LedgerEntry, TableFile, TableSnapshot
from tests.integration.components.snapshotter.conftest import Lake

HOUR = timedelta(hours=1)


class Maintenance:
    """Expiration and cleanup of one lake, with a grace period of one hour."""

    def __init__(self, lake: Lake, policy: SnapshotPolicy) -> None:
        self.cleanup = FileCleanup(lake.store, lake.tables, call, Objects(lake.settings), lake.clock, defaults=policy)
        self.expire = SnapshotExpiration(lake.store, lake.tables, call, lake.clock, policy).expire
        self.clean = self.cleanup.clean
        self.clean_intents = self.cleanup.clean_intents


def maintenance_of(lake: Lake, keep: int | None = None, keep_for_ms: int | None = None) -> Maintenance:
    return Maintenance(lake, SnapshotPolicy(grace_ms=3_600_000, keep=keep, keep_for_ms=keep_for_ms))


def there(files: list[TableFile]) -> list[bool]:
    return [Path(unquote(urlparse(file.file_path).path)).exists() for file in files]


def reasons(report: RetentionReport) -> dict[str, str]:
    return {decision.name.rpartition("/")[2]: decision.reason for decision in report.decisions}


async def test_all_but_the_newest_expire_and_are_released_after_the_grace_period(lake: Lake) -> None:
    table = await lake.create()
    for number in range(4):
        await lake.insert(table, number)
        await lake.snapshot(table, f"v{number}")
    maintenance = maintenance_of(lake, keep=2)
    planned = await maintenance.expire(table, dry_run=True)
    assert {decision.name: decision.remove for decision in planned.decisions} == {
        "v3": False, "v2": False, "v1": True, "v0": True,
    }  # fmt: skip
    assert set(lake.tags(table)) == {"v0", "v1", "v2", "v3"}, "a dry run changes nothing"
    before = lake.tags(table)
    await maintenance.expire(table)
    rows = await lake.store.list_snapshots(table.id)
    assert [row.status for row in rows] == ["expired", "expired", "created", "created"]
    held = {f"astha-expiring-{row.id}" for row in rows[:2]}
    assert set(lake.tags(table)) == {"v2", "v3"} | held
    assert lake.ids(table, before["v0"]) == [0], "readers can finish"
    assert (await maintenance.expire(table)).released == []
    lake.clock.advance(HOUR)
    assert (await maintenance.expire(table)).released == [rows[0].id, rows[1].id]
    assert set(lake.tags(table)) == {"v2", "v3"}
    retained = {snapshot.snapshot_id for snapshot in lake.load(table).metadata.snapshots}
    assert before["v0"] not in retained
    assert (await maintenance.expire(table)).released == []
    assert lake.ids(table) == [0, 1, 2, 3]


async def test_an_expired_name_can_be_reused_at_once(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    old = await lake.snapshot(table, "latest")
    await maintenance_of(lake).expire(table, tags=["latest"])
    await lake.insert(table, 2)
    new = await lake.snapshot(table, "latest")
    assert lake.tags(table) == {"latest": new.snapshot_id, f"astha-expiring-{old.id}": old.snapshot_id}


async def test_tags_of_other_tools_are_not_touched(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    first = await lake.snapshot(table, "v1")
    assert first.snapshot_id is not None
    lake.load(table).manage_snapshots().create_tag(first.snapshot_id, "audit").commit()
    second_files = await lake.insert(table, 2)
    moved = await lake.snapshot(table, "v2")
    await lake.remove(table, second_files)
    await lake.update()
    current = lake.load(table).metadata.current_snapshot_id
    assert current is not None
    lake.load(table).manage_snapshots().create_tag(current, "v2").commit()  # by another tool
    maintenance = maintenance_of(lake, keep_for_ms=0)
    await maintenance.expire(table)
    lake.clock.advance(HOUR)
    await maintenance.expire(table)
    assert lake.tags(table) == {"audit": first.snapshot_id, "v2": current}
    assert lake.ids(table, first.snapshot_id) == [1]
    assert moved.snapshot_id != current


async def test_expiration_leaves_no_gap_in_the_updaters_history(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    await lake.insert(table, 2)
    tagged = await lake.snapshot(table, "v1")
    await lake.insert(table, 3)
    await lake.update()
    maintenance = maintenance_of(lake, keep_for_ms=0)
    await maintenance.expire(table)
    lake.clock.advance(HOUR)
    await maintenance.expire(table)
    assert lake.tags(table) == {}
    snapshots = sorted(lake.load(table).metadata.snapshots, key=lambda known: known.sequence_number or 0)
    assert tagged.snapshot_id in {snapshot.snapshot_id for snapshot in snapshots}
    for older, newer in pairwise(snapshots):
        assert newer.parent_snapshot_id == older.snapshot_id


async def test_files_are_deleted_only_after_their_snapshot(lake: Lake) -> None:
    table = await lake.create()
    old = [file for number in range(2) for file in await lake.insert(table, number)]
    tagged = await lake.snapshot(table, "v1")
    await lake.compact(table, old, 0, 1)
    for number in range(5, 11):  # until only the tag holds the old state
        await lake.insert(table, number)
        await lake.update()
    maintenance = maintenance_of(lake)
    (report,) = await maintenance.clean()
    assert all("grace" in reason for reason in reasons(report).values())
    lake.clock.advance(HOUR)
    (report,) = await maintenance.clean()
    assert set(reasons(report).values()) == {f"Iceberg snapshot {tagged.snapshot_id} needs it"}
    assert there(old) == [True, True]
    await maintenance.expire(table, tags=["v1"])
    await maintenance.clean()
    assert there(old) == [True, True], "readers of the tag have an hour"
    lake.clock.advance(HOUR)
    await maintenance.expire(table)
    (planned,) = await maintenance.clean(dry_run=True)
    assert len(planned.removed) == 2
    assert there(old) == [True, True]
    (report,) = await maintenance.clean()
    assert len(report.removed) == 2
    assert there(old) == [False, False]
    assert await lake.store.list_files_awaiting_deletion() == []
    assert await maintenance.clean() == []
    assert lake.ids(table) == [0, 1, 5, 6, 7, 8, 9, 10]


async def test_nothing_is_deleted_while_the_updater_is_behind(lake: Lake) -> None:
    table = await lake.create()
    first = await lake.insert(table, 1)
    await lake.update()
    second = await lake.insert(table, 2)  # not delivered to the updater, nor the rest
    await lake.remove(table, [*first, *second])
    lake.clock.advance(HOUR)
    maintenance = maintenance_of(lake)
    (report,) = await maintenance.clean()
    assert report.removed == []
    assert "needs it" in reasons(report)["00000.parquet"]
    assert reasons(report)["00001.parquet"] == "Iceberg has not caught up with the registry"
    await lake.update()
    for number in range(5, 11):
        await lake.insert(table, number)
        await lake.update()
    (report,) = await maintenance.clean()
    assert len(report.removed) == 2


async def test_a_file_added_and_removed_unseen_is_kept(lake: Lake) -> None:
    """The digest is the same as before, so it proves nothing."""
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    current = lake.load(table).metadata.current_snapshot()
    assert current is not None
    lake.clock.set(current.timestamp_ms + 1)
    unseen = await lake.insert(table, 2)
    await lake.remove(table, unseen)
    lake.clock.advance(HOUR)
    maintenance = maintenance_of(lake)
    (report,) = await maintenance.clean()
    assert report.removed == []
    assert "added and removed since Iceberg's last commit" in reasons(report)["00001.parquet"]
    first, second = lake.for_updater
    await lake.updater.on_transactions([first])
    assert lake.ids(table) == [1, 2], "the snapshot in between is readable"
    await lake.updater.on_transactions([second])


async def test_the_updaters_ledger_entry_decides(lake: Lake) -> None:
    table = await lake.create()
    await lake.remove(table, await lake.insert(table, 1))
    await lake.insert(table, 2)
    await lake.update()
    await lake.create("other")  # now the table's stamp is behind the registry
    lake.clock.advance(HOUR)
    lease = await lake.store.take_daemon_lease("astha", "test", 10_000)
    assert lease is not None

    async def enter(position: int | None, owed: bool) -> None:
        entry = LedgerEntry("iceberg_updater", position, None, "[]", "live", owed, "slow", 0, "astha")  # type: ignore[arg-type]
        await lake.store.write_ledger([entry], lease)

    maintenance = maintenance_of(lake)
    await enter(None, True)
    (report,) = await maintenance.clean(dry_run=True)
    assert "owes a refresh" in reasons(report)["00000.parquet"]
    await enter(await lake.store.position() + (1 << 40), False)
    (report,) = await maintenance.clean()
    assert len(report.removed) == 1


async def test_files_of_a_purged_table_are_deleted_after_its_iceberg_table(lake: Lake) -> None:
    table = await lake.create()
    files = await lake.insert(table, 1)
    await lake.snapshot(table, "v1")
    await lake.drop(table, purge=True)
    lake.clock.advance(HOUR)
    maintenance = maintenance_of(lake)
    (report,) = await maintenance.clean()
    assert "still in the Iceberg catalog" in reasons(report)["00000.parquet"]
    await lake.update()
    (report,) = await maintenance.clean()
    assert (report.table, len(report.removed)) == (f"table {table.id}", 1)
    assert there(files) == [False]


async def test_one_scan_of_the_catalog_serves_all_dropped_tables(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for name in ("orders", "returns", "invoices"):
        table = await lake.create(name)
        files += await lake.insert(table, 1)
        await lake.update()
        await lake.drop(table, purge=True)
    await lake.update()
    lake.clock.advance(HOUR)
    scans: list[int] = []
    scan = lake.tables._scan

    def counted() -> dict[int, tuple[str, ...]]:
        scans.append(1)
        return scan()

    monkeypatch.setattr(lake.tables, "_scan", counted)
    assert len(await maintenance_of(lake).clean()) == 3
    assert there(files) == [False] * 3
    assert len(scans) == 1


async def test_an_invalid_policy_deletes_nothing(lake: Lake) -> None:
    table = await lake.create(properties={"snapshot.grace": "soon"})
    await lake.remove(table, await lake.insert(table, 1))
    await lake.update()
    lake.clock.advance(HOUR * 48)
    (report,) = await maintenance_of(lake).clean()
    assert report.removed == []
    assert "snapshot.grace = 'soon'" in (report.problem or "")


@pytest.mark.parametrize("step", ["retire", "update_snapshot", "record_intents", "release", "claim", "delete"])
async def test_the_next_round_finishes_after_an_interruption(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Fails before and after each step, as if the process was killed there."""
    for number, when in enumerate(("before", "after")):
        table = await lake.create(f"t{number}")
        old = await lake.insert(table, 1)
        await lake.snapshot(table, "v1")
        await lake.compact(table, old, 1)
        for more in range(5, 11):
            await lake.insert(table, more)
            await lake.update()
        await _fail_at(lake, monkeypatch, table, step, when)
        maintenance = maintenance_of(lake, keep_for_ms=0)
        await maintenance.expire(table)
        lake.clock.advance(HOUR)
        await maintenance.expire(table)
        await maintenance.clean()
        lake.clock.advance(HOUR)
        await maintenance.clean_intents(900)
        assert lake.tags(table) == {}
        assert there(old) == [False]
        assert await lake.store.list_stale_intents(0) == []
        assert [row.status for row in await lake.store.list_snapshots(table.id)] == ["expired"]
        assert lake.ids(table) == [1, 5, 6, 7, 8, 9, 10]


async def _fail_at(lake: Lake, monkeypatch: pytest.MonkeyPatch, table: LakeTable, step: str, when: str) -> None:
    maintenance = maintenance_of(lake, keep_for_ms=0)
    died = False

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def blocking(*args: object, **options: object) -> None:
            nonlocal died
            if when == "after":
                real(*args, **options)
            died = True
            raise Unavailable("killed")

        async def waiting(*args: object, **options: object) -> None:
            nonlocal died
            if when == "after":
                await real(*args, **options)
            died = True
            raise Unavailable("killed")

        return waiting if asyncio.iscoroutinefunction(real) else blocking

    with monkeypatch.context() as patch:
        if step in ("retire", "release"):
            patch.setattr(f"components.snapshotter.expiration.{step}", failing(getattr(tags, step)))
        elif step == "delete":
            objects = maintenance.cleanup._objects
            patch.setattr(objects, "delete_many", failing(objects.delete_many))
        else:
            verb = "claim_files_awaiting_deletion" if step == "claim" else step
            patch.setattr(lake.store, verb, failing(getattr(lake.store, verb)))
        for action in (
            lambda: maintenance.expire(table),
            lambda: maintenance.expire(table),
            lambda: maintenance.clean(),
        ):
            try:
                await action()
            except Unavailable:
                break
            lake.clock.advance(HOUR)
    assert died


async def lost_snapshot(lake: Lake) -> tuple[LakeTable, list[TableFile], TableSnapshot]:
    """Returns a snapshot of the registry, with a removed file, that the recreated Iceberg table does not have."""
    table = await lake.create()
    old = await lake.insert(table, 1)
    named = await lake.snapshot(table, "v1")
    await lake.compact(table, old, 1)
    await lake.update()
    lake.tables.catalog.drop_table(("shop", "orders"))
    lake.tables.forget()
    async with lake.store.consistent_read() as snapshot:
        await lake.updater.on_refresh(snapshot)
    assert lake.tags(table) == {}
    lake.clock.advance(HOUR)
    return table, old, named


async def test_a_created_snapshot_counts_even_if_iceberg_lost_it(lake: Lake) -> None:
    table, old, named = await lost_snapshot(lake)
    (report,) = await maintenance_of(lake).clean()
    assert [decision.reason for decision in report.decisions] == [f"Iceberg snapshot {named.snapshot_id} needs it"]
    assert there(old) == [True]
    await maintenance_of(lake).expire(table, tags=["v1"])
    (report,) = await maintenance_of(lake).clean()
    assert there(old) == [True], "grace period of readers"
    lake.clock.advance(HOUR)
    await maintenance_of(lake).expire(table)
    await maintenance_of(lake).clean()
    assert there(old) == [False]


async def test_unreadable_manifests_keep_all_files_of_their_table_only(lake: Lake) -> None:
    _, old, named = await lost_snapshot(lake)
    other = await lake.create("other")
    unneeded = await lake.insert(other, 5)
    await lake.update()
    await lake.remove(other, unneeded)
    for number in range(10, 14):  # until no retained snapshot refers to it
        await lake.insert(other, number)
        await lake.update()
    broken = await lake.create("broken")
    kept = await lake.insert(broken, 6)
    await lake.insert(broken, 7)
    await lake.update()
    await lake.remove(broken, kept)
    await lake.update()
    lake.clock.advance(HOUR)
    assert named.manifest_list is not None
    _path(named.manifest_list).unlink()
    current = lake.load(broken).metadata.current_snapshot()
    assert current is not None
    _path(current.manifests(lake.load(broken).io)[0].manifest_path).write_bytes(b"damaged")
    for dry_run in (True, False):
        found = {report.table: report for report in await maintenance_of(lake).clean(dry_run=dry_run)}
        assert "`astha snapshot expire shop.orders --tag v1`" in (found["shop.orders"].problem or "")
        assert "a manifest of shop.broken can't be read" in (found["shop.broken"].problem or "")
        for name in ("shop.orders", "shop.broken"):
            assert [(decision.remove, decision.reason) for decision in found[name].decisions] == [
                (False, found[name].problem)
            ]
        assert [decision.remove for decision in found["shop.other"].decisions] == [True]
        assert found["shop.other"].problem is None
    assert there([*old, *kept, *unneeded]) == [True, True, False]


async def test_files_of_a_dropped_table_are_kept_while_the_catalog_has_an_unreadable_one(lake: Lake) -> None:
    table = await lake.create()
    files = await lake.insert(table, 1)
    await lake.update()
    metadata = _path(lake.load(table).metadata_location)
    content = metadata.read_bytes()
    await lake.drop(table, purge=True)
    lake.clock.advance(HOUR)
    for damaged in (b"", b"{", None):
        metadata.write_bytes(damaged) if damaged is not None else metadata.unlink()
        (report,) = await maintenance_of(lake).clean()
        assert "shop.orders in the Iceberg catalog cannot be read" in report.decisions[0].reason, report.problem
    metadata.write_bytes(content)
    await lake.update()
    await maintenance_of(lake).clean()
    assert there(files) == [False]


async def test_files_outside_of_the_lake_are_never_deleted(lake: Lake, tmp_path: Path) -> None:
    table = await lake.create()
    precious, links = tmp_path / "precious", lake.warehouse / "orders" / "links"
    precious.write_bytes(b"x")
    links.parent.mkdir(parents=True, exist_ok=True)
    links.symlink_to(tmp_path)
    paths = [f"file://{precious}", f"file://{lake.warehouse}/orders/../../{precious}", f"file://{links}/precious"]
    files = await lake.store.add_files(
        table.id, [FileDraft(file_path=path, file_size=1, row_count=1, schema_version=1) for path in paths]
    )
    await lake.store.remove_files(table.id, files, reason="a mistake")
    await lake.insert(table, 1)
    await lake.update()
    lake.clock.advance(HOUR)
    for dry_run in (True, False):
        (report,) = await maintenance_of(lake).clean(dry_run=dry_run)
        assert [decision.remove for decision in report.decisions] == [False, False, False]
    assert "lake.roots" in report.decisions[0].reason
    assert precious.exists()
    assert len(await lake.store.list_files_awaiting_deletion()) == 3


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))
