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
from components.snapshotter.expiration import Lifecycle, Report
from components.snapshotter.policy import Policy
from registry.errors import Unavailable
from registry.inputs import FileDraft
from registry.models import LakeTable, LedgerEntry, TableFile, TableSnapshot
from tests.integration.components.snapshotter.conftest import Lake

HOUR = timedelta(hours=1)


def lifecycle_of(lake: Lake, keep: int | None = None, keep_for_ms: int | None = None) -> Lifecycle:
    defaults = Policy(grace_ms=3_600_000, keep=keep, keep_for_ms=keep_for_ms)
    return Lifecycle(lake.store, lake.tables, call, Objects(lake.settings), lake.clock, defaults=defaults)


def there(files: list[TableFile]) -> list[bool]:
    return [Path(unquote(urlparse(file.file_path).path)).exists() for file in files]


def whys(report: Report) -> dict[str, str]:
    return {verdict.name.rpartition("/")[2]: verdict.why for verdict in report.verdicts}


async def test_the_newest_stay_and_the_others_go_when_their_grace_is_over(lake: Lake) -> None:
    table = await lake.create()
    for number in range(4):
        await lake.insert(table, number)
        await lake.snapshot(table, f"v{number}")
    lifecycle = lifecycle_of(lake, keep=2)
    planned = await lifecycle.expire(table, dry_run=True)
    assert {verdict.name: verdict.goes for verdict in planned.verdicts} == {
        "v3": False, "v2": False, "v1": True, "v0": True,
    }  # fmt: skip
    assert set(lake.tags(table)) == {"v0", "v1", "v2", "v3"}, "a dry run changes nothing"
    before = lake.tags(table)
    await lifecycle.expire(table)
    rows = await lake.store.list_snapshots(table.id)
    assert [row.status for row in rows] == ["expired", "expired", "created", "created"]
    held = {f"astha-expiring-{row.id}" for row in rows[:2]}
    assert set(lake.tags(table)) == {"v2", "v3"} | held
    assert lake.ids(table, before["v0"]) == [0], "who reads it can finish"
    assert (await lifecycle.expire(table)).released == []
    lake.clock.advance(HOUR)
    assert (await lifecycle.expire(table)).released == [rows[0].id, rows[1].id]
    assert set(lake.tags(table)) == {"v2", "v3"}
    retained = {snapshot.snapshot_id for snapshot in lake.load(table).metadata.snapshots}
    assert before["v0"] not in retained
    assert (await lifecycle.expire(table)).released == []
    assert lake.ids(table) == [0, 1, 2, 3]


async def test_an_expired_name_can_be_used_again_at_once(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    old = await lake.snapshot(table, "latest")
    await lifecycle_of(lake).expire(table, tags=["latest"])
    await lake.insert(table, 2)
    new = await lake.snapshot(table, "latest")
    assert lake.tags(table) == {"latest": new.snapshot_id, f"astha-expiring-{old.id}": old.snapshot_id}


async def test_tags_of_others_are_left_alone(lake: Lake) -> None:
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
    lake.load(table).manage_snapshots().create_tag(current, "v2").commit()  # by somebody else
    lifecycle = lifecycle_of(lake, keep_for_ms=0)
    await lifecycle.expire(table)
    lake.clock.advance(HOUR)
    await lifecycle.expire(table)
    assert lake.tags(table) == {"audit": first.snapshot_id, "v2": current}
    assert lake.ids(table, first.snapshot_id) == [1]
    assert moved.snapshot_id != current


async def test_the_history_of_the_updater_has_no_gap(lake: Lake) -> None:
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    await lake.insert(table, 2)
    tagged = await lake.snapshot(table, "v1")
    await lake.insert(table, 3)
    await lake.update()
    lifecycle = lifecycle_of(lake, keep_for_ms=0)
    await lifecycle.expire(table)
    lake.clock.advance(HOUR)
    await lifecycle.expire(table)
    assert lake.tags(table) == {}
    snapshots = sorted(lake.load(table).metadata.snapshots, key=lambda known: known.sequence_number or 0)
    assert tagged.snapshot_id in {snapshot.snapshot_id for snapshot in snapshots}
    for older, newer in pairwise(snapshots):
        assert newer.parent_snapshot_id == older.snapshot_id


async def test_what_a_snapshot_needs_stays_and_goes_after_it(lake: Lake) -> None:
    table = await lake.create()
    old = [file for number in range(2) for file in await lake.insert(table, number)]
    tagged = await lake.snapshot(table, "v1")
    await lake.compact(table, old, 0, 1)
    for number in range(5, 11):  # until nothing but the tag holds the old state
        await lake.insert(table, number)
        await lake.update()
    lifecycle = lifecycle_of(lake)
    (report,) = await lifecycle.clean()
    assert all("grace" in why for why in whys(report).values())
    lake.clock.advance(HOUR)
    (report,) = await lifecycle.clean()
    assert set(whys(report).values()) == {f"Iceberg snapshot {tagged.snapshot_id} needs it"}
    assert there(old) == [True, True]
    await lifecycle.expire(table, tags=["v1"])
    await lifecycle.clean()
    assert there(old) == [True, True], "readers of the tag have an hour"
    lake.clock.advance(HOUR)
    await lifecycle.expire(table)
    (planned,) = await lifecycle.clean(dry_run=True)
    assert len(planned.gone) == 2
    assert there(old) == [True, True]
    (report,) = await lifecycle.clean()
    assert len(report.gone) == 2
    assert there(old) == [False, False]
    assert await lake.store.list_files_awaiting_deletion() == []
    assert await lifecycle.clean() == []
    assert lake.ids(table) == [0, 1, 5, 6, 7, 8, 9, 10]


async def test_nothing_goes_while_the_updater_is_behind(lake: Lake) -> None:
    table = await lake.create()
    first = await lake.insert(table, 1)
    await lake.update()
    second = await lake.insert(table, 2)  # the updater sees neither this, nor what follows
    await lake.remove(table, [*first, *second])
    lake.clock.advance(HOUR)
    lifecycle = lifecycle_of(lake)
    (report,) = await lifecycle.clean()
    assert report.gone == []
    assert "needs it" in whys(report)["00000.parquet"]
    assert whys(report)["00001.parquet"] == "Iceberg has not caught up with the registry"
    await lake.update()
    for number in range(5, 11):
        await lake.insert(table, number)
        await lake.update()
    (report,) = await lifecycle.clean()
    assert len(report.gone) == 2


async def test_what_came_and_went_unseen_may_still_be_on_its_way(lake: Lake) -> None:
    """Its digest is that of before: it does not tell."""
    table = await lake.create()
    await lake.insert(table, 1)
    await lake.update()
    current = lake.load(table).metadata.current_snapshot()
    assert current is not None
    lake.clock.set(current.timestamp_ms + 1)
    unseen = await lake.insert(table, 2)
    await lake.remove(table, unseen)
    lake.clock.advance(HOUR)
    lifecycle = lifecycle_of(lake)
    (report,) = await lifecycle.clean()
    assert report.gone == []
    assert "it came and went since Iceberg's last commit" in whys(report)["00001.parquet"]
    first, second = lake.for_updater
    await lake.updater.on_transactions([first])
    assert lake.ids(table) == [1, 2], "the snapshot in between can be read"
    await lake.updater.on_transactions([second])


async def test_the_ledger_of_the_updater_counts(lake: Lake) -> None:
    table = await lake.create()
    await lake.remove(table, await lake.insert(table, 1))
    await lake.insert(table, 2)
    await lake.update()
    await lake.create("other")  # the table's stamp does not tell any more
    lake.clock.advance(HOUR)
    lease = await lake.store.take_daemon_lease("astha", "test", 10_000)
    assert lease is not None

    async def enter(position: int | None, owed: bool) -> None:
        entry = LedgerEntry("iceberg_updater", position, None, "[]", "live", owed, "slow", 0)  # type: ignore[arg-type]
        await lake.store.write_ledger([entry], lease)

    lifecycle = lifecycle_of(lake)
    await enter(None, True)
    (report,) = await lifecycle.clean(dry_run=True)
    assert "owes a refresh" in whys(report)["00000.parquet"]
    await enter(await lake.store.position() + (1 << 40), False)
    (report,) = await lifecycle.clean()
    assert len(report.gone) == 1


async def test_a_purged_table_goes_when_iceberg_has_let_it_go(lake: Lake) -> None:
    table = await lake.create()
    files = await lake.insert(table, 1)
    await lake.snapshot(table, "v1")
    await lake.drop(table, purge=True)
    lake.clock.advance(HOUR)
    lifecycle = lifecycle_of(lake)
    (report,) = await lifecycle.clean()
    assert "still in the Iceberg catalog" in whys(report)["00000.parquet"]
    await lake.update()
    (report,) = await lifecycle.clean()
    assert (report.table, len(report.gone)) == (f"table {table.id}", 1)
    assert there(files) == [False]


async def test_a_policy_that_can_not_be_read_costs_nothing(lake: Lake) -> None:
    table = await lake.create(properties={"snapshot.grace": "soon"})
    await lake.remove(table, await lake.insert(table, 1))
    await lake.update()
    lake.clock.advance(HOUR * 48)
    (report,) = await lifecycle_of(lake).clean()
    assert report.gone == []
    assert "snapshot.grace = 'soon'" in (report.problem or "")


@pytest.mark.parametrize("step", ["retire", "update_snapshot", "record_intents", "release", "claim", "delete"])
async def test_interrupted_anywhere_the_next_round_finishes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before and after each step, as if the process had died there."""
    for number, when in enumerate(("before", "after")):
        table = await lake.create(f"t{number}")
        old = await lake.insert(table, 1)
        await lake.snapshot(table, "v1")
        await lake.compact(table, old, 1)
        for more in range(5, 11):
            await lake.insert(table, more)
            await lake.update()
        await _die_somewhere(lake, monkeypatch, table, step, when)
        lifecycle = lifecycle_of(lake, keep_for_ms=0)
        await lifecycle.expire(table)
        lake.clock.advance(HOUR)
        await lifecycle.expire(table)
        await lifecycle.clean()
        lake.clock.advance(HOUR)
        await lifecycle.clean_intents(900)
        assert lake.tags(table) == {}
        assert there(old) == [False]
        assert await lake.store.list_stale_intents(0) == []
        assert [row.status for row in await lake.store.list_snapshots(table.id)] == ["expired"]
        assert lake.ids(table) == [1, 5, 6, 7, 8, 9, 10]


async def _die_somewhere(lake: Lake, monkeypatch: pytest.MonkeyPatch, table: LakeTable, step: str, when: str) -> None:
    lifecycle = lifecycle_of(lake, keep_for_ms=0)
    died = False

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
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
            patch.setattr(f"components.snapshotter.expiration.{step}", dying(getattr(tags, step)))
        elif step == "delete":
            patch.setattr(lifecycle._objects, "delete_many", dying(lifecycle._objects.delete_many))
        else:
            verb = "claim_files_awaiting_deletion" if step == "claim" else step
            patch.setattr(lake.store, verb, dying(getattr(lake.store, verb)))
        for action in (
            lambda: lifecycle.expire(table),
            lambda: lifecycle.expire(table),
            lambda: lifecycle.clean(),
        ):
            try:
                await action()
            except Unavailable:
                break
            lake.clock.advance(HOUR)
    assert died


async def lost_snapshot(lake: Lake) -> tuple[LakeTable, list[TableFile], TableSnapshot]:
    """The registry has it, and needs a file that the table has lost; the Iceberg table was made again without it."""
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


async def test_a_snapshot_of_the_registry_counts_though_iceberg_has_lost_it(lake: Lake) -> None:
    table, old, named = await lost_snapshot(lake)
    (report,) = await lifecycle_of(lake).clean()
    assert [verdict.why for verdict in report.verdicts] == [f"Iceberg snapshot {named.snapshot_id} needs it"]
    assert there(old) == [True]
    await lifecycle_of(lake).expire(table, tags=["v1"])
    (report,) = await lifecycle_of(lake).clean()
    assert there(old) == [True], "readers have the grace"
    lake.clock.advance(HOUR)
    await lifecycle_of(lake).expire(table)
    await lifecycle_of(lake).clean()
    assert there(old) == [False]


async def test_what_can_not_be_read_may_need_everything_and_other_tables_go_on(lake: Lake) -> None:
    _, old, named = await lost_snapshot(lake)
    other = await lake.create("other")
    unneeded = await lake.insert(other, 5)
    await lake.update()
    await lake.remove(other, unneeded)
    for number in range(10, 14):  # until no retained snapshot has it
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
        found = {report.table: report for report in await lifecycle_of(lake).clean(dry_run=dry_run)}
        assert "`astha snapshot expire shop.orders --tag v1`" in (found["shop.orders"].problem or "")
        assert "a manifest of shop.broken can't be read" in (found["shop.broken"].problem or "")
        for name in ("shop.orders", "shop.broken"):
            assert [(verdict.goes, verdict.why) for verdict in found[name].verdicts] == [(False, found[name].problem)]
        assert [verdict.goes for verdict in found["shop.other"].verdicts] == [True]
        assert found["shop.other"].problem is None
    assert there([*old, *kept, *unneeded]) == [True, True, False]


async def test_files_of_a_dropped_table_stay_while_the_catalog_has_one_that_can_not_be_read(lake: Lake) -> None:
    table = await lake.create()
    files = await lake.insert(table, 1)
    await lake.update()
    metadata = _path(lake.load(table).metadata_location)
    content = metadata.read_bytes()
    await lake.drop(table, purge=True)
    lake.clock.advance(HOUR)
    for damaged in (b"", b"{", None):
        metadata.write_bytes(damaged) if damaged is not None else metadata.unlink()
        (report,) = await lifecycle_of(lake).clean()
        assert "the Iceberg catalog has shop.orders, which can't be read" in report.verdicts[0].why, report.problem
    metadata.write_bytes(content)
    await lake.update()
    await lifecycle_of(lake).clean()
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
        (report,) = await lifecycle_of(lake).clean(dry_run=dry_run)
        assert [verdict.goes for verdict in report.verdicts] == [False, False, False]
    assert "lake.roots" in report.verdicts[0].why
    assert precious.exists()
    assert len(await lake.store.list_files_awaiting_deletion()) == 3


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))
