"""Lake tables and their schema versions."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound
from registry.inputs import TableDraft
from registry.json_text import JsonText, parse_json, parse_json_as
from registry.models import LakeTable, TableFile, TableMetadata, TableOrder
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, BAD_TEXT, Refused
from tests.contracts.contents import contents, unchanged
from tests.doubles.clock import ManualClock
from tests.samples import TABLE, file, snapshot

FULL = TableDraft(
    schema=JsonText('{"fields":[{"id":1,"name":"ü\\"\\\\"}]}'),
    storage_engine="engine",
    engine_config=JsonText('{"a":1}'),
    format="orc",
    compression="lz4",
    partition_by=JsonText('["day"]'),
    sort_by=JsonText('["n"]'),
    properties=JsonText('{"p":null}'),
)


async def test_a_table_starts_with_schema_version_1(store: MetadataStore, clock: ManualClock) -> None:
    now = clock.now_ms()
    table = await store.create_table("db", "t", "s3://lake/t", FULL)
    assert table == LakeTable(table.id, "db", "t", "s3://lake/t", 0, 0, 0, now, "active", now, now)
    assert await store.get_table("db", "t") == table
    assert await store.get_table_by_id(table.id) == table
    version = await store.get_table_metadata(table.id)
    assert version is not None
    whole = (version.id, table.id, 1, *msgspec.structs.astuple(FULL), now, now, now)
    assert msgspec.structs.astuple(version) == whole
    assert parse_json(version.schema) == {"fields": [{"id": 1, "name": 'ü"\\'}]}


async def test_missing_things_are_none(store: MetadataStore) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    assert await store.get_table("db", "other") is None
    assert await store.get_table("other", "t") is None
    assert await store.get_table_by_id(table.id + 1) is None
    assert await store.get_table_metadata(table.id, 2) is None
    assert await store.get_table_metadata(table.id + 1) is None
    assert await store.list_table_metadata(table.id + 1) == []


async def test_tables_are_listed_by_database_and_name(store: MetadataStore) -> None:
    for database, name in [("b", "x"), ("a", "y"), ("a", "X"), ("B", "z")]:
        await store.create_table(database, name, "s3://lake", TABLE)
    found = [(table.database, table.name) for table in await store.list_tables()]
    assert found == [("B", "z"), ("a", "X"), ("a", "y"), ("b", "x")]
    assert [table.name for table in await store.list_tables("a")] == ["X", "y"]
    assert await store.list_tables("none") == []


async def test_one_of_two_concurrent_creators_wins(store: MetadataStore, other: MetadataStore) -> None:
    results = await asyncio.gather(
        *((store, other)[n % 2].create_table("db", "t", f"s3://lake/{n}", TABLE) for n in range(4)),
        return_exceptions=True,
    )
    (winner,) = (result for result in results if isinstance(result, LakeTable))
    assert sum(isinstance(result, AlreadyExists) for result in results) == 3
    assert await store.list_tables() == [winner]
    assert len(await store.list_table_metadata(winner.id)) == 1
    async with unchanged(store):
        with pytest.raises(AlreadyExists, match=r"db\.t"):
            await store.create_table("db", "t", "s3://lake", TABLE)
    await store.create_table("db2", "t", "s3://lake", TABLE)


async def test_altering_changes_the_given_attributes(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", FULL)
    await store.create_table("db", "taken", "s3://lake/taken", TABLE)
    clock.advance(10)
    now = clock.now_ms()
    renamed = await store.alter_table(table.id, name="u")
    assert renamed == msgspec.structs.replace(table, name="u", updated_at=now)
    moved = await store.alter_table(table.id, database="db2", location="s3://other", status="dropping")
    assert moved == msgspec.structs.replace(
        renamed, database="db2", location="s3://other", status="dropping", updated_at=now
    )
    assert await store.get_table_by_id(table.id) == moved
    version = await store.get_table_metadata(table.id)
    assert version is not None
    assert (version.properties, version.last_modified) == (FULL.properties, now - 10)
    assert version.updated_at == now, "touched, so that who follows schema versions learns of the new name"


async def test_a_new_status_touches_no_schema_version(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", FULL)
    before = await store.get_table_metadata(table.id)
    clock.advance(10)
    await store.alter_table(table.id, status="dropping")
    assert await store.get_table_metadata(table.id) == before


async def test_altered_properties_are_those_of_the_current_version(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", FULL)
    await store.add_schema_version(table.id, FULL, expected=1)
    clock.advance(10)
    await store.alter_table(table.id, properties={"b": 2, "a": 1})
    first, second = await store.list_table_metadata(table.id)
    assert first.properties == FULL.properties
    assert (second.properties, second.last_modified) == ('{"a":1,"b":2}', clock.now_ms())


async def test_an_alteration_that_fails_changes_nothing(store: MetadataStore) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.create_table("db", "taken", "s3://lake/taken", TABLE)
    async with unchanged(store):
        with pytest.raises(AlreadyExists, match="taken"):
            await store.alter_table(table.id, name="taken", properties={"a": 1})
        with pytest.raises(NotFound, match=str(table.id + 9)):
            await store.alter_table(table.id + 9, name="x", properties={"a": 1})
        with pytest.raises(Invalid, match="status"):
            await store.alter_table(table.id, status="gone")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="properties"):
            await store.alter_table(table.id, name="v", properties={"a": "\ud800"})


async def test_schema_versions_follow_each_other(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    clock.advance(10)
    second = await store.add_schema_version(table.id, FULL, expected=1)
    assert (second.schema_version, second.schema, second.created_at) == (2, FULL.schema, clock.now_ms())
    assert await store.get_table_metadata(table.id) == second
    first = await store.get_table_metadata(table.id, 1)
    assert first is not None
    assert await store.list_table_metadata(table.id) == [first, second]
    async with unchanged(store):
        for expected in (1, 3):
            with pytest.raises(Conflict, match="schema version 2") as caught:
                await store.add_schema_version(table.id, TABLE, expected=expected)
            assert caught.value.names == ("2",)
        with pytest.raises(NotFound, match=str(table.id + 1)):
            await store.add_schema_version(table.id + 1, TABLE, expected=1)


async def test_one_of_two_concurrent_schema_changes_wins(store: MetadataStore, other: MetadataStore) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    results = await asyncio.gather(
        *((store, other)[n % 2].add_schema_version(table.id, TABLE, expected=1) for n in range(4)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, TableMetadata) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 3
    assert [version.schema_version for version in await store.list_table_metadata(table.id)] == [1, 2]


async def test_dropping_a_table_deletes_its_rows(store: MetadataStore) -> None:
    kept = await store.create_table("db", "kept", "s3://lake/kept", TABLE)
    await store.add_files(kept.id, [file("s3://lake/kept/1")])
    before = await contents(store)
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.add_schema_version(table.id, TABLE, expected=1)
    await store.add_files(table.id, [file("s3://lake/t/1"), file("s3://lake/t/2", version=2, partition="d=1")])
    await store.record_snapshot(table.id, snapshot(1))
    await store.drop_table(table.id)
    assert await contents(store) == before
    with pytest.raises(NotFound, match=str(table.id)):
        await store.drop_table(table.id)


async def test_a_purge_lists_the_files_for_deletion(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    files = await store.add_files(table.id, [file(f"s3://lake/t/{number}") for number in range(1_100)])
    (removed,) = await store.add_files(table.id, [file("s3://lake/t/old")])
    await store.remove_files(table.id, [removed], reason="old")
    clock.advance(10)
    await store.drop_table(table.id, purge=True)
    awaiting = await store.list_files_awaiting_deletion(table_id=table.id, limit=2_000)
    assert {row.file_path for row in awaiting} == {row.file_path for row in files} | {"s3://lake/t/old"}
    newest = awaiting[-1]
    assert (newest.reason, newest.removed_at, newest.file_size) == ("table dropped", clock.now_ms(), 1_000)
    assert parse_json_as(newest.file, TableFile) == next(row for row in files if row.file_path == newest.file_path)
    async with unchanged(store):
        with pytest.raises(NotFound):
            await store.drop_table(table.id, purge=True)


async def test_ids_are_not_used_again(store: MetadataStore) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.drop_table(table.id)
    assert (await store.create_table("db", "t", "s3://lake/t", TABLE)).id > table.id


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, refused: Refused) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)

    async def refuse(field: str, value: Any) -> None:
        bad = msgspec.structs.replace(TABLE, **{field: value})
        await refused(store.create_table("db", "new", "s3://lake", bad), field, value)
        await refused(store.add_schema_version(table.id, bad, expected=1), field, value)

    async with unchanged(store):
        for name in BAD_NAMES:
            await refused(store.create_table(name, "new", "s3://lake", TABLE), "database", name)
            await refused(store.create_table("db", name, "s3://lake", TABLE), "name", name)
            await refused(store.get_table(name, "t"), "database", name)
            await refused(store.get_table("db", name), "name", name)
            if name is not None:
                await refused(store.list_tables(name), "database", name)
                await refused(store.alter_table(table.id, database=name), "database", name)
                await refused(store.alter_table(table.id, name=name), "name", name)
        for text in ["", *BAD_TEXT]:
            await refused(store.create_table("db", "new", text, TABLE), "location", text)
            if text is not None:
                await refused(store.alter_table(table.id, location=text), "location", text)
            for field in TableDraft.__struct_fields__:
                await refuse(field, text)
        for number in BAD_COUNTS:
            await refused(store.get_table_by_id(number), "table_id", number)
            await refused(store.alter_table(number, name="x"), "table_id", number)
            await refused(store.drop_table(number), "table_id", number)
            await refused(store.add_schema_version(number, TABLE, expected=1), "table_id", number)
            await refused(store.add_schema_version(table.id, TABLE, expected=number), "expected", number)
            await refused(store.get_table_metadata(number), "table_id", number)
            await refused(store.get_table_metadata(table.id, number), "schema_version", number)
            await refused(store.list_table_metadata(number), "table_id", number)


async def test_a_name_that_no_command_can_address_is_refused(store: MetadataStore, refused: Refused) -> None:
    """Commands address a table as DATABASE.TABLE, split at the last dot."""
    table = await store.create_table("a.b", "t", "s3://lake/t", TABLE)
    async with unchanged(store):
        for name in ("a.b", ".a", "a."):
            await refused(store.create_table("db", name, "s3://lake", TABLE), "name", name)
            await refused(store.alter_table(table.id, name=name), "name", name)
        for name in (".a", "a.", "a..b"):
            await refused(store.create_table(name, "new", "s3://lake", TABLE), "database", name)
            await refused(store.alter_table(table.id, database=name), "database", name)


async def test_text_that_is_not_json_is_refused(store: MetadataStore, subtests: pytest.Subtests) -> None:
    """The store does not parse JSON columns: the database checks them."""
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    async with unchanged(store):
        for text in ("{", "nothing", "{'a':1}", "[1,]", "NaN"):
            bad = msgspec.structs.replace(TABLE, schema=JsonText(text))
            with subtests.test(text), pytest.raises(Invalid):
                await store.create_table("db", "new", "s3://lake", bad)
            with subtests.test(text), pytest.raises(Invalid):
                await store.add_schema_version(table.id, bad, expected=1)


async def test_tables_are_searched_in_pages(store: MetadataStore) -> None:
    made = [await store.create_table(db, name, f"s3://lake/{db}/{name}", TABLE) for db, name in _SEARCHED]
    await store.add_files(made[2].id, [file("a", size=7), file("b", size=1)])

    async def pages(text: str, order: TableOrder) -> list[list[str]]:
        found: list[list[str]] = []
        after = None
        while True:
            page = await store.search_tables(text, order=order, after=after, limit=2)
            assert page.total == len([1 for db, name in _SEARCHED if text.lower() in f"{db}.{name}".lower()])
            found.append([f"{table.database}.{table.name}" for table in page.tables])
            after = page.after
            if after is None:
                return found

    assert await pages("", "name") == [["crm.Leads", "shop.100%"], ["shop.order_items", "shop.orders"]]
    assert await pages("ORDER", "name") == [["shop.order_items", "shop.orders"]]
    assert await pages("p.o", "files") == [["shop.order_items", "shop.orders"]]
    assert (await pages("", "size"))[0][0] == "shop.order_items"
    assert await pages("%", "name") == [["shop.100%"]]
    assert await pages("_i", "name") == [["shop.order_items"]]
    assert await pages("nothing", "modified") == [[]]


_SEARCHED = [("shop", "orders"), ("crm", "Leads"), ("shop", "order_items"), ("shop", "100%")]


async def test_a_search_checks_its_arguments(store: MetadataStore) -> None:
    for bad in ({"text": 1}, {"order": "id"}, {"limit": 0}, {"after": (1, 1)}, {"order": "size", "after": ("x", 1)}):
        with pytest.raises(Invalid):
            await store.search_tables(**bad)
