"""Commits through the Iceberg catalog: pointer, files, statistics, versions and marker in one transaction."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from registry.contract import MetadataStore
from registry.errors import AlreadyCommitted, AlreadyExists, Conflict, NotFound
from registry.inputs import CatalogCommit, DeleteFileDraft
from registry.models import PUBLISHED, UNPUBLISHED, CatalogRequest, IcebergCommit, Row, TableDeleteFile
from tests.contracts.bad_input import Refused
from tests.fixtures.stores import OpenStore
from tests.samples import TABLE, file


def location(number: int, name: str = "t") -> str:
    return f"s3://lake/{name}/metadata/{number}.json"


@dataclass
class Engine:
    """Commits to one table as an engine does through the catalog."""

    store: MetadataStore
    table_id: int = 0
    name: str = "t"
    pointer: str | None = None
    commits: int = 0

    async def create(self, **rest: Any) -> None:
        self.table_id = await self.store.reserve_table_id()
        await self.commit(create=TABLE, table_location=f"s3://lake/{self.name}", operation="metadata", **rest)

    def draft(self, **rest: Any) -> CatalogCommit:
        values = {
            "catalog": "astha", "namespace": "db", "name": self.name, "expected": self.pointer,
            "location": location(self.commits + 1, self.name), "table_id": self.table_id, **rest,
        }  # fmt: skip
        return CatalogCommit(**values)

    async def commit(self, *, request: CatalogRequest | None = None, **rest: Any) -> None:
        draft = self.draft(**rest)
        await self.store.commit_catalog([draft], request=request)
        self.pointer = draft.location
        self.commits += 1


@pytest.fixture
async def store(url: str, opened: OpenStore) -> MetadataStore:
    """Not through the cache: it forwards these verbs."""
    return await opened(url)


@pytest.fixture
async def engine(store: MetadataStore) -> Engine:
    made = Engine(store)
    await made.create()
    return made


def deletes(path: str, **rest: Any) -> DeleteFileDraft:
    values = {"file_size": 10, "content": "position", "row_count": 2, "sequence_number": 3, **rest}
    return DeleteFileDraft(file_path=path, **values)


async def rows(store: MetadataStore, kind: type[Row]) -> list[Any]:
    async with store.consistent_read() as snapshot:
        return [row async for page in snapshot.rows(kind) for row in page]


async def everything(store: MetadataStore) -> list[Any]:
    """All that a commit can change."""
    return [row for kind in (*PUBLISHED, *UNPUBLISHED) for row in await rows(store, kind)]


async def test_a_commit_moves_pointer_files_statistics_and_marker(store: MetadataStore, engine: Engine) -> None:
    added = [file("s3://lake/t/a.parquet", partition="d=1"), file("s3://lake/t/b.parquet", partition="d=2")]
    await engine.commit(added=added, snapshot_id=7, parent_snapshot_id=None, engine="Spark 4")
    await engine.commit(
        added=[file("s3://lake/t/c.parquet", rows=4, partition="d=1")],
        removed=["s3://lake/t/a.parquet"], snapshot_id=8, parent_snapshot_id=7, operation="overwrite",
    )  # fmt: skip

    pointer = await store.get_catalog_table("astha", "db", "t")
    assert pointer is not None
    assert (pointer.metadata_location, pointer.previous_metadata_location) == (location(3), location(2))
    files = {found.file_path: found for found in await store.list_files(engine.table_id)}
    assert sorted(files) == ["s3://lake/t/b.parquet", "s3://lake/t/c.parquet"]
    assert {(found.operation, found.operation_id) for found in files.values()} == {
        ("external", "iceberg-7"),
        ("external", "iceberg-8"),
    }
    (listed,) = await store.list_files_awaiting_deletion(table_id=engine.table_id)
    assert (listed.file_path, listed.reason) == ("s3://lake/t/a.parquet", "external iceberg-8")
    table = await store.get_table_by_id(engine.table_id)
    assert table is not None
    assert (table.database, table.name, table.location) == ("db", "t", "s3://lake/t")
    assert (table.file_count, table.row_count) == (2, 14)
    assert await store.recount_statistics(engine.table_id) == table
    created, first, second = await rows(store, IcebergCommit)
    assert (created.snapshot_id, created.operation, created.metadata_location) == (None, "metadata", location(1))
    assert (first.snapshot_id, first.engine, first.added_files, first.added_rows) == (7, "Spark 4", 2, 20)
    assert (second.parent_snapshot_id, second.removed_files, second.removed_rows) == (7, 1, 10)


async def test_of_concurrent_commits_one_wins(store: MetadataStore, engine: Engine) -> None:
    for round_ in range(5):
        rivals = [
            engine.draft(
                location=location(100 * round_ + 100 + number),
                added=[file(f"s3://lake/t/{round_}-{number}.parquet")], snapshot_id=100 * round_ + number,
            )
            for number in range(8)
        ]  # fmt: skip
        done = await asyncio.gather(*(store.commit_catalog([rival]) for rival in rivals), return_exceptions=True)
        winners = [rival for rival, result in zip(rivals, done, strict=True) if result is None]
        assert len(winners) == 1, done
        assert all(isinstance(result, Conflict) for result in done if result is not None)
        engine.pointer = winners[0].location
    table = await store.get_table_by_id(engine.table_id)
    assert table is not None
    assert (table.file_count, table.row_count) == (5, 50)
    assert len(await rows(store, IcebergCommit)) == 6


async def test_a_conflict_leaves_nothing(store: MetadataStore, engine: Engine) -> None:
    await engine.commit(added=[file("s3://lake/t/a.parquet")], snapshot_id=1)
    await store.record_intents(["s3://lake/t/claimed.parquet"], purpose="expired", owner="cleaner")
    before = await everything(store)
    new = [file("s3://lake/t/new.parquet")]
    request = CatalogRequest("key", "print")
    cases: list[dict[str, Any]] = [
        {"expected": location(1), "added": new},
        {"removed": ["s3://lake/t/unknown.parquet"], "added": new},
        {"added": [*new, file("s3://lake/t/a.parquet")]},
        {"added": [*new, file("s3://lake/t/claimed.parquet")]},
        {"version": TABLE, "version_expected": 2, "added": new},
        {"deletes_removed": ["s3://lake/t/d.parquet"], "added": new},
        {"deletes_added": [deletes("s3://lake/t/d.parquet", referenced_data_file="s3://lake/t/gone.parquet")]},
        {"required": ["s3://lake/t/gone.parquet"], "added": new},
    ]
    for case in cases:
        with pytest.raises(Conflict):
            await store.commit_catalog([engine.draft(snapshot_id=2, **case)], request=request)
        assert await everything(store) == before, case


async def test_a_table_that_is_gone_is_not_found(store: MetadataStore, engine: Engine) -> None:
    with pytest.raises(NotFound):
        await store.commit_catalog([engine.draft(name="other", snapshot_id=1)])
    await store.drop_table(engine.table_id)
    with pytest.raises(NotFound):
        await store.commit_catalog([engine.draft(snapshot_id=1, added=[file("s3://lake/t/a.parquet")])])


async def test_several_tables_change_together_or_not_at_all(store: MetadataStore, engine: Engine) -> None:
    other = Engine(store, name="u")
    await other.create()
    before = await everything(store)
    first = engine.draft(added=[file("s3://lake/t/a.parquet")], snapshot_id=1)
    stale = other.draft(expected=location(9, "u"), added=[file("s3://lake/u/a.parquet")], snapshot_id=2)
    with pytest.raises(Conflict):
        await store.commit_catalog([first, stale])
    assert await everything(store) == before
    await store.commit_catalog([other.draft(added=[file("s3://lake/u/a.parquet")], snapshot_id=2), first])
    assert len(await store.list_files(engine.table_id)) == len(await store.list_files(other.table_id)) == 1


async def test_a_table_is_created_once(store: MetadataStore, engine: Engine) -> None:
    rivals = [Engine(store, name="new") for _ in range(6)]
    done = await asyncio.gather(*(rival.create() for rival in rivals), return_exceptions=True)
    assert [type(result) for result in done if result is not None] == [AlreadyExists] * 5
    assert len({rival.table_id for rival in rivals}) == 6
    await store.create_table("db", "ours", "s3://lake/ours", TABLE)
    with pytest.raises(AlreadyExists):
        await Engine(store, name="ours").create()
    assert await store.get_catalog_table("astha", "db", "ours") is None


async def test_a_reserved_id_is_used_once(store: MetadataStore) -> None:
    reserved = [await store.reserve_table_id() for _ in range(3)]
    table = await store.create_table("db", "own", "s3://lake/own", TABLE)
    assert len({*reserved, table.id}) == 4
    assert table.id > max(reserved)
    assert await store.list_tables() == [table]


async def test_a_table_of_another_catalog_gets_a_row(store: MetadataStore, engine: Engine) -> None:
    """An Iceberg table that was there before: pointer expected, registry's table created."""
    await store.drop_table(engine.table_id)
    engine.table_id = await store.reserve_table_id()
    await engine.commit(
        create=TABLE, table_location="s3://lake/t", added=[file("s3://lake/t/a.parquet")], snapshot_id=4
    )
    assert len(await store.list_files(engine.table_id)) == 1


async def test_a_schema_version_is_part_of_the_commit(store: MetadataStore, engine: Engine) -> None:
    await engine.commit(
        version=TABLE, version_expected=1, added=[file("s3://lake/t/a.parquet", version=2)], snapshot_id=5
    )
    current = await store.get_table_metadata(engine.table_id)
    assert current is not None
    assert current.schema_version == 2


async def test_a_file_that_awaits_deletion_can_be_added_again(store: MetadataStore, engine: Engine) -> None:
    path = "s3://lake/t/a.parquet"
    await engine.commit(added=[file(path)], snapshot_id=1)
    await engine.commit(removed=[path], snapshot_id=2, operation="delete")
    await engine.commit(added=[file(path)], snapshot_id=1, operation="append")
    assert await store.list_files_awaiting_deletion() == []
    await engine.commit(removed=[path], snapshot_id=3, operation="delete")
    (listed,) = await store.list_files_awaiting_deletion()
    await store.claim_files_awaiting_deletion([listed.id], purpose="expired", owner="cleaner")
    with pytest.raises(Conflict) as caught:
        await engine.commit(added=[file(path)], snapshot_id=1)
    assert caught.value.names == (path,)


async def test_delete_files_have_rows_of_their_own(store: MetadataStore, engine: Engine) -> None:
    data = "s3://lake/t/a.parquet"
    await engine.commit(added=[file(data, partition="d=1")], snapshot_id=1)
    position = deletes("s3://lake/t/d1.parquet", partition_path="d=1", referenced_data_file=data, snapshot_id=2)
    vectors = [deletes("s3://lake/t/v.puffin", content_offset=offset, file_type="puffin") for offset in (4, 90)]
    await engine.commit(deletes_added=[position, *vectors], required=[data], snapshot_id=2, operation="delete")
    first, second, third = await store.list_delete_files(engine.table_id)
    assert (first.file_path, first.content, first.referenced_data_file) == (position.file_path, "position", data)
    assert (second.file_path, second.content_offset, third.content_offset) == ("s3://lake/t/v.puffin", 4, 90)
    assert await store.list_delete_files(engine.table_id, partition_path="d=1") == [first]
    removed = [position.file_path, ("s3://lake/t/v.puffin", 4)]
    await engine.commit(deletes_removed=removed, removed=[data], snapshot_id=3, operation="overwrite")
    assert await store.list_delete_files(engine.table_id) == [third]
    listed = await store.list_files_awaiting_deletion()
    assert sorted(found.file_path for found in listed) == [data, position.file_path]
    marker = (await rows(store, IcebergCommit))[-1]
    assert (marker.removed_files, marker.removed_delete_files) == (1, 2)


async def test_an_engines_rollback_brings_delete_files_back(store: MetadataStore, engine: Engine) -> None:
    """They await deletion no more, and may be removed once more."""
    draft = deletes("s3://lake/t/d.parquet")
    for number in range(2):
        await engine.commit(deletes_added=[draft], snapshot_id=1 + 2 * number, operation="delete")
        assert await store.list_files_awaiting_deletion() == []
        await engine.commit(deletes_removed=[draft.file_path], snapshot_id=2 + 2 * number, operation="overwrite")
        assert [found.file_path for found in await store.list_files_awaiting_deletion()] == [draft.file_path]


async def test_a_swap_loses_against_delete_files_that_it_did_not_see(store: MetadataStore, engine: Engine) -> None:
    data, merged = "s3://lake/t/a.parquet", file("s3://lake/t/m.parquet", partition="d=1", rows=8)
    await engine.commit(added=[file(data, partition="d=1")], snapshot_id=1)
    old = await store.list_files(engine.table_id)
    await engine.commit(
        deletes_added=[deletes("s3://lake/t/d.parquet", partition_path="d=1")], snapshot_id=2, operation="delete"
    )
    with pytest.raises(Conflict) as caught:
        await store.swap_files(engine.table_id, old, [merged], operation_id="swap-1")
    assert caught.value.names == ("s3://lake/t/d.parquet",)
    seen: list[TableDeleteFile] = await store.list_delete_files(engine.table_id)
    await store.swap_files(engine.table_id, old, [merged], operation_id="swap-1", removed_deletes=seen)
    assert await store.list_delete_files(engine.table_id) == []
    assert [found.file_path for found in await store.list_files(engine.table_id)] == [merged.file_path]
    listed = {found.file_path for found in await store.list_files_awaiting_deletion()}
    assert listed == {data, "s3://lake/t/d.parquet"}


async def test_a_repeated_request_is_recognized(store: MetadataStore, engine: Engine) -> None:
    request = CatalogRequest("key-1", "print-1", '{"done":true}')
    draft = engine.draft(added=[file("s3://lake/t/a.parquet")], snapshot_id=1)
    done = await asyncio.gather(
        *(store.commit_catalog([draft], request=request) for _ in range(4)), return_exceptions=True
    )
    assert [type(result) for result in done if result is not None] == [AlreadyCommitted] * 3
    found = await store.get_catalog_request("key-1")
    assert found is not None
    assert (found.fingerprint, found.response) == ("print-1", '{"done":true}')
    assert found.created_at > 0
    assert await store.get_catalog_request("key-2") is None
    assert len(await store.list_files(engine.table_id)) == 1
    again = CatalogRequest("key-1", "print-2")
    for call in (
        store.rename_catalog_table("astha", "db", "t", "db", "v", request=again),
        store.drop_catalog_table("astha", "db", "t", purge=True, request=again),
        store.create_catalog_namespace("astha", "other", {}, request=again),
        store.update_catalog_namespace("astha", "db", set={"a": "b"}, remove=[], request=again),
        store.drop_catalog_namespace("astha", "db", request=again),
    ):
        with pytest.raises(AlreadyCommitted):
            await call
    assert await store.get_catalog_table("astha", "db", "t") is not None


async def test_a_thousand_files_in_one_commit(store: MetadataStore, engine: Engine) -> None:
    drafts = [file(f"s3://lake/t/{number}.parquet", partition=f"d={number % 7}") for number in range(1_000)]
    await engine.commit(added=drafts, snapshot_id=1)
    await engine.commit(removed=[draft.file_path for draft in drafts[:600]], snapshot_id=2, operation="delete")
    table = await store.get_table_by_id(engine.table_id)
    assert table is not None
    assert (table.file_count, table.row_count) == (400, 4_000)
    assert sum(part.file_count for part in await store.get_statistics(engine.table_id)) == 400


async def test_a_metadata_file_needs_its_intent_if_asked_for(store: MetadataStore, engine: Engine) -> None:
    draft = engine.draft(snapshot_id=1)
    await store.record_intents([draft.location], purpose="metadata", owner="cleaner")
    with pytest.raises(Conflict) as caught:
        await store.commit_catalog([draft], intents_of="catalog-1")
    assert caught.value.names == (draft.location,)
    await store.record_intents([draft.location], purpose="metadata", owner="catalog-1")
    await store.commit_catalog([draft], intents_of="catalog-1")
    assert await store.list_stale_intents(0) == []


async def test_old_markers_and_requests_are_pruned(
    store: MetadataStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for backend in ("sql", "dynamodb"):
        monkeypatch.setattr(f"registry.stores.{backend}.catalog_commits.KEPT_COMMITS", 3)
        monkeypatch.setattr(f"registry.stores.{backend}.catalog_commits.PRUNE_EVERY", 1)
    other = Engine(store, name="u")
    await other.create()
    for number in range(6):
        await engine.commit(snapshot_id=number, request=CatalogRequest(f"key-{number}", "print"))
    kept = await rows(store, IcebergCommit)
    assert [row.snapshot_id for row in kept if row.table_id == engine.table_id] == [3, 4, 5]
    assert [row.table_id for row in kept].count(other.table_id) == 1
    assert await store.get_catalog_request("key-0") is not None
    for module in ("sql.catalog_requests", "dynamodb.iceberg_catalog"):
        monkeypatch.setattr(f"registry.stores.{module}.KEPT_REQUESTS_MS", 0)
    await engine.commit(snapshot_id=9)
    assert await store.get_catalog_request("key-0") is None


async def test_a_rename_moves_the_pointer_and_the_registry_s_table(store: MetadataStore, engine: Engine) -> None:
    await store.create_table("db", "taken", "s3://lake/taken", TABLE)
    other = Engine(store, name="u")
    await other.create()
    for name in ("taken", "u"):
        with pytest.raises(AlreadyExists):
            await store.rename_catalog_table("astha", "db", "t", "db", name)
    with pytest.raises(NotFound):
        await store.rename_catalog_table("astha", "db", "nothing", "db", "v")
    with pytest.raises(Conflict):
        await store.rename_catalog_table("astha", "db", "t", "db", "v", table_id=other.table_id)
    assert await store.get_catalog_table("astha", "db", "t") is not None
    await store.rename_catalog_table("astha", "db", "t", "eu.db", "v", table_id=engine.table_id)
    assert await store.get_catalog_table("astha", "db", "t") is None
    moved, table = await store.get_catalog_table("astha", "eu.db", "v"), await store.get_table("eu.db", "v")
    assert moved is not None
    assert table is not None
    assert (moved.metadata_location, table.id) == (location(1), engine.table_id)


async def test_a_drop_removes_both(store: MetadataStore, engine: Engine) -> None:
    await engine.commit(
        added=[file("s3://lake/t/a.parquet")], deletes_added=[deletes("s3://lake/t/d.parquet")], snapshot_id=1
    )
    other = Engine(store, name="u")
    await other.create(added=[file("s3://lake/u/a.parquet")])
    with pytest.raises(Conflict):
        await store.drop_catalog_table("astha", "db", "t", purge=False, table_id=other.table_id)
    await store.drop_catalog_table("astha", "db", "u", purge=False)
    assert await store.list_files_awaiting_deletion() == []
    await store.drop_catalog_table("astha", "db", "t", purge=True, table_id=engine.table_id)
    assert {listed.file_path for listed in await store.list_files_awaiting_deletion()} == {
        "s3://lake/t/a.parquet",
        "s3://lake/t/d.parquet",
    }
    assert await store.list_tables() == []
    with pytest.raises(NotFound):
        await store.drop_catalog_table("astha", "db", "t", purge=True)


async def test_namespaces(store: MetadataStore, engine: Engine) -> None:
    done = await asyncio.gather(
        *(store.create_catalog_namespace("astha", "new", {"owner": "ann", "b": ""}) for _ in range(4)),
        return_exceptions=True,
    )
    assert [type(result) for result in done if result is not None] == [AlreadyExists] * 3
    assert await store.get_namespace_properties("astha", "new") == {"owner": "ann", "b": ""}
    with pytest.raises(AlreadyExists):
        await store.create_catalog_namespace("astha", "db", {})
    changed = await store.update_catalog_namespace("astha", "new", set={"owner": "bob"}, remove=["b", "nothing"])
    assert (changed.updated, changed.removed, changed.missing) == (["owner"], ["b"], ["nothing"])
    await store.update_catalog_namespace("astha", "new", set={}, remove=["owner"])
    assert await store.get_namespace_properties("astha", "new") == {}
    assert await store.list_catalog_namespaces("astha") == ["db", "new"]
    with pytest.raises(NotFound):
        await store.update_catalog_namespace("astha", "nothing", set={}, remove=[])
    with pytest.raises(NotFound):
        await store.drop_catalog_namespace("astha", "nothing")
    with pytest.raises(Conflict):
        await store.drop_catalog_namespace("astha", "db")
    await store.create_catalog_namespace("astha", "new.below_%", {})
    with pytest.raises(Conflict):
        await store.drop_catalog_namespace("astha", "new")
    await store.drop_catalog_namespace("astha", "new.below_%")
    await store.drop_catalog_namespace("astha", "new")
    assert await store.list_catalog_namespaces("astha") == ["db"]


async def test_bad_commits_are_refused(store: MetadataStore, engine: Engine, refused: Refused) -> None:
    async def check(field: str, value: object, **rest: Any) -> None:
        await refused(store.commit_catalog([engine.draft(**rest)]), field, value)

    await check("location", "", location="")
    await check("location", location(1), location=location(1))
    await check("name", "x" * 256, name="x" * 256)
    await check("operation", "whim", operation="whim")
    await check("table_id", 0, table_id=0)
    await check("version_expected", None, version=TABLE)
    await check("removed", "a", removed=["a", "a"])
    await check("removed", "s3://a", removed=["s3://a"], added=[file("s3://a")])
    await check("content", "whim", deletes_added=[deletes("d", content="whim")])
    await check("table_location", None, create=TABLE)
    twice = engine.draft()
    await refused(store.commit_catalog([twice, twice]), "table_id", engine.table_id)
    await refused(store.commit_catalog([twice], request=CatalogRequest("", "x")), "request_key", "")
    await refused(store.create_catalog_namespace("astha", "n", {"exists": "x"}), "properties", "exists")
    await refused(store.create_catalog_namespace("astha", "n", {"a": "x" * 1001}), "properties", "x" * 1001)
    await refused(store.update_catalog_namespace("astha", "db", set={"a": ""}, remove=["a"]), "remove", "a")
    assert await store.get_catalog_request("x") is None


async def test_two_tables_never_share_a_location(store: MetadataStore, url: str, opened: OpenStore) -> None:
    """Also if two processes have both found it free."""
    engines = [Engine(await opened(url), name=name) for name in ("a", "b", "c", "d")]

    async def create(engine: Engine) -> None:
        engine.table_id = await engine.store.reserve_table_id()
        await engine.commit(create=TABLE, table_location="s3://lake/same", operation="metadata")

    results = await asyncio.gather(*map(create, engines), return_exceptions=True)
    refused = [result for result in results if result is not None]
    assert [type(result) for result in refused] == [Conflict] * 3
    (made,) = await store.list_tables()
    assert all(f"shares files with db.{made.name} at s3://lake/same" in str(result) for result in refused)
    assert {row.table_name for row in await store.list_catalog_tables("astha", "db")} == {made.name}


@pytest.mark.parametrize("place", ["s3://lake/t", "s3://lake/t/", "s3://lake/t/data", "s3://lake", "s3://lake/t/a/b"])
async def test_a_table_is_not_created_inside_or_around_another(
    store: MetadataStore, engine: Engine, place: str
) -> None:
    other = Engine(store, await store.reserve_table_id(), name="u")
    with pytest.raises(Conflict, match=r"shares files with db\.t at s3://lake/t"):
        await other.commit(create=TABLE, table_location=place, operation="metadata")
    beside = Engine(store, await store.reserve_table_id(), name="u")
    await beside.commit(create=TABLE, table_location="s3://lake/t2", operation="metadata")


async def test_a_table_moves_with_its_pointer(store: MetadataStore, engine: Engine) -> None:
    other = Engine(store, name="u")
    await other.create()
    with pytest.raises(Conflict, match=r"shares files with db\.u"):
        await engine.commit(table_location="s3://lake/u/t", operation="metadata")
    await engine.commit(table_location="s3://lake/t/moved", operation="metadata")
    moved = await store.get_table_by_id(engine.table_id)
    assert moved is not None
    assert moved.location == "s3://lake/t/moved"
    found = await store.get_catalog_table("astha", "db", "t")
    assert found is not None
    assert found.metadata_location == engine.pointer
