"""Upload intents and files awaiting deletion."""

from __future__ import annotations

import asyncio

import pytest

from registry.contract import MetadataStore
from registry.errors import Conflict
from registry.models import UploadIntent
from tests.contracts.bad_input import BAD_COUNTS, BAD_PATHS, Refused
from tests.contracts.contents import unchanged
from tests.doubles.clock import ManualClock
from tests.samples import TABLE, file


async def test_an_intent_is_stale_after_its_time(store: MetadataStore, clock: ManualClock) -> None:
    await store.record_intents(["b", "a", "b"], purpose="insert", owner="w-1")
    clock.advance(10)
    await store.record_intents(["c"], purpose="compaction", owner="w-2")
    then = clock.now_ms() - 10
    assert await store.list_stale_intents(10) == [
        UploadIntent("a", "insert", "w-1", then),
        UploadIntent("b", "insert", "w-1", then),
    ]
    assert await store.list_stale_intents(11) == []
    assert [intent.path for intent in await store.list_stale_intents(0)] == ["a", "b", "c"]
    assert await store.list_stale_intents(2**63 - 1) == []


async def test_a_newer_intent_replaces_the_older_one(store: MetadataStore, clock: ManualClock) -> None:
    await store.record_intents(["a"], purpose="insert", owner="w-1")
    clock.advance(10)
    await store.record_intents(["a"], purpose="compaction", owner="w-2")
    assert await store.list_stale_intents(0) == [UploadIntent("a", "compaction", "w-2", clock.now_ms())]


async def test_completed_intents_are_gone(store: MetadataStore) -> None:
    await store.record_intents([str(number) for number in range(50)], purpose="insert", owner="w")
    await store.complete_intents([str(number) for number in range(49)] + ["unknown", "1"])
    assert [intent.path for intent in await store.list_stale_intents(0)] == ["49"]


async def test_pages_follow_paths(store: MetadataStore) -> None:
    paths = sorted(["s3://b/ä", "s3://b/B", "s3://b/a", "s3://b/a/1", "s3://b/a-1"], key=str.encode)
    await store.record_intents(paths, purpose="insert", owner="w")
    first = [intent.path for intent in await store.list_stale_intents(0, limit=2)]
    second = [intent.path for intent in await store.list_stale_intents(0, after=first[-1], limit=10)]
    assert first + second == paths
    assert len(first) == 2


async def test_many_may_record_the_same_paths(store: MetadataStore, other: MetadataStore) -> None:
    paths = [str(number) for number in range(20)]
    orders = [paths, paths[::-1]]
    await asyncio.gather(
        *((store, other)[n % 2].record_intents(orders[n % 2], purpose="insert", owner=str(n)) for n in range(16))
    )
    assert len({intent.owner for intent in await store.list_stale_intents(0)}) == 1


async def test_stale_intents_can_be_claimed(store: MetadataStore, clock: ManualClock) -> None:
    await store.record_intents(["b", "a"], purpose="insert", owner="w-1")
    clock.advance(10)
    await store.record_intents(["c"], purpose="insert", owner="w-2")
    now = clock.now_ms()
    assert await store.claim_stale_intents(10, owner="cleaner") == [
        UploadIntent("a", "insert", "cleaner", now),
        UploadIntent("b", "insert", "cleaner", now),
    ]
    assert await store.claim_stale_intents(10, owner="another") == []
    clock.advance(10)
    first = await store.claim_stale_intents(10, owner="another", limit=2)
    second = await store.claim_stale_intents(10, owner="another", limit=2)
    assert (len(first), len(second)) == (2, 1)
    assert {intent.path for intent in first + second} == {"a", "b", "c"}


async def test_one_of_many_concurrent_claims_gets_an_intent(
    store: MetadataStore, other: MetadataStore, clock: ManualClock
) -> None:
    paths = sorted(str(number) for number in range(30))
    await store.record_intents(paths, purpose="insert", owner="w")
    clock.advance(10)
    claimed = await asyncio.gather(
        *((store, other)[n % 2].claim_stale_intents(10, owner=str(n), limit=7) for n in range(8))
    )
    rest = await store.claim_stale_intents(10, owner="the rest")
    assert sorted(intent.path for intents in [*claimed, rest] for intent in intents) == paths


async def test_only_the_owners_intents_are_renewed(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    await store.record_intents(["a", "b", "c", "d"], purpose="insert", owner="w")
    await store.add_files(table.id, [file("c")], intents_of="w")
    await store.record_intents(["d"], purpose="insert", owner="cleaner")
    clock.advance(10)
    assert await store.renew_intents(["d", "c", "b", "a", "unknown"], owner="w") == ["a", "b"]
    assert [intent.path for intent in await store.list_stale_intents(10)] == ["d"]  # and none for what is registered
    assert await store.renew_intents(["a", "d"], owner="w", new_owner="w-2") == ["a"]
    assert {intent.path: intent.owner for intent in await store.list_stale_intents(0)} == {
        "a": "w-2", "b": "w", "d": "cleaner",
    }  # fmt: skip
    assert await store.renew_intents(["a"], owner="w") == []
    assert await store.renew_intents(None, owner="w-2", new_owner="w") == ["a"]
    assert await store.renew_intents(None, owner="w") == ["a", "b"]


async def test_an_object_is_registered_or_claimed_never_both(store: MetadataStore, other: MetadataStore) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)

    async def register(path: str) -> str | None:
        try:
            await store.add_files(table.id, [file(path)], intents_of="w")
        except Conflict:
            return None
        return path

    for turn in range(10):
        paths = [f"{turn}-{number}" for number in range(8)]
        await store.record_intents(paths, purpose="insert", owner="w")
        claiming = asyncio.create_task(other.claim_stale_intents(0, owner="cleaner"))
        registered = await asyncio.gather(*(register(path) for path in paths))
        claim = await claiming
        taken = {intent.path for intent in claim}
        assert taken.isdisjoint(registered)
        live = {row.file_path async for row in store.stream_files(table.id)}
        assert {path for path in paths if path in live} == {path for path in registered if path}
        await store.complete_intents(paths)


async def test_files_awaiting_deletion_are_listed_and_forgotten(store: MetadataStore, clock: ManualClock) -> None:
    one = await store.create_table("db", "one", "s3://lake/one", TABLE)
    two = await store.create_table("db", "two", "s3://lake/two", TABLE)
    for table in (one, two):
        files = await store.add_files(table.id, [file(f"{table.name}-{n}") for n in range(3)])
        await store.remove_files(table.id, files, reason="old")
        clock.advance(10)
    rows = await store.list_files_awaiting_deletion()
    assert len(rows) == 6
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    assert [row.table_id for row in rows] == [one.id] * 3 + [two.id] * 3
    assert await store.list_files_awaiting_deletion(table_id=two.id) == rows[3:]
    assert await store.list_files_awaiting_deletion(removed_before=rows[3].removed_at) == rows[:3]
    assert await store.list_files_awaiting_deletion(removed_before=rows[0].removed_at) == []
    assert await store.list_files_awaiting_deletion(after=rows[1].id, limit=2) == rows[2:4]
    await store.forget_deleted_files([rows[0].id, rows[4].id, 10**9, rows[0].id])
    assert await store.list_files_awaiting_deletion() == [rows[1], rows[2], rows[3], rows[5]]
    await store.drop_table(one.id)
    assert await store.list_files_awaiting_deletion(table_id=one.id) == rows[1:3]  # the list outlives the table


async def test_a_file_claimed_for_deletion_can_not_be_restored(store: MetadataStore, clock: ManualClock) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)
    files = await store.add_files(table.id, [file(name) for name in "abc"])
    await store.remove_files(table.id, files, reason="old")
    rows = await store.list_files_awaiting_deletion()
    taken = await store.claim_files_awaiting_deletion([rows[1].id, rows[0].id, 10**9], purpose="deletion", owner="c")
    assert taken == rows[:2]
    assert await store.list_files_awaiting_deletion() == rows[2:]
    assert [(intent.path, intent.purpose, intent.owner) for intent in await store.list_stale_intents(0)] == [
        ("a", "deletion", "c"), ("b", "deletion", "c"),
    ]  # fmt: skip
    assert await store.claim_files_awaiting_deletion([rows[0].id], purpose="deletion", owner="d") == []
    async with unchanged(store):
        with pytest.raises(Conflict, match="no longer await deletion: b") as refusal:
            await store.swap_files(table.id, [], [file("b"), file("c")], operation="rollback", operation_id="r")
        assert refusal.value.names == ("b",)
    await store.swap_files(table.id, [], [file("c")], operation="rollback", operation_id="r")
    assert await store.list_files_awaiting_deletion() == []


async def test_a_file_is_restored_or_claimed_never_both(store: MetadataStore, other: MetadataStore) -> None:
    table = await store.create_table("db", "t", "s3://lake/t", TABLE)

    async def roll_back(path: str) -> str | None:
        try:
            await store.swap_files(table.id, [], [file(path)], operation="rollback", operation_id="r")
        except Conflict:
            return None
        return path

    for turn in range(10):
        paths = [f"{turn}-{number}" for number in range(8)]
        await store.remove_files(table.id, await store.add_files(table.id, [file(path) for path in paths]), reason="x")
        listed = [row.id for row in await store.list_files_awaiting_deletion()]
        claiming = asyncio.create_task(other.claim_files_awaiting_deletion(listed, purpose="deletion", owner="c"))
        back = await asyncio.gather(*(roll_back(path) for path in paths))
        taken = {row.file_path for row in await claiming}
        assert taken | {path for path in back if path} == set(paths)
        assert taken.isdisjoint(back)
        await store.forget_deleted_files(listed)


async def test_empty_calls_do_nothing(store: MetadataStore) -> None:
    await store.record_intents(["a"], purpose="insert", owner="w")
    async with unchanged(store):
        await store.record_intents([], purpose="insert", owner="w")
        await store.complete_intents([])
        assert await store.renew_intents([], owner="w") == []
        assert await store.claim_files_awaiting_deletion([], purpose="deletion", owner="c") == []
        await store.forget_deleted_files([])


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, refused: Refused) -> None:
    await store.record_intents(["a"], purpose="insert", owner="w")
    async with unchanged(store):
        for path in BAD_PATHS:
            await refused(store.record_intents(["b", path], purpose="p", owner="w"), "path", path)
            await refused(store.complete_intents(["a", path]), "path", path)
        for path in BAD_PATHS[1:]:
            await refused(store.list_stale_intents(0, after=path), "after", path)
        for text in ("", "nul\0", "\ud800"):
            await refused(store.record_intents(["b"], purpose=text, owner="w"), "purpose", text)
            await refused(store.record_intents(["b"], purpose="p", owner=text), "owner", text)
            await refused(store.renew_intents(["b"], owner=text), "owner", text)
            await refused(store.renew_intents(["b"], owner="w", new_owner=text), "new_owner", text)
        for number in BAD_COUNTS:
            await refused(store.list_stale_intents(number), "older_than_ms", number)
            await refused(store.claim_stale_intents(number, owner="w"), "older_than_ms", number)
            await refused(store.list_stale_intents(0, limit=number), "limit", number)
            await refused(store.list_files_awaiting_deletion(table_id=number), "table_id", number)
            await refused(store.list_files_awaiting_deletion(removed_before=number), "removed_before", number)
            await refused(store.list_files_awaiting_deletion(after=number), "after", number)
            await refused(store.list_files_awaiting_deletion(limit=number), "limit", number)
            await refused(store.forget_deleted_files([1, number]), "id", number)
            await refused(store.claim_files_awaiting_deletion([1, number], purpose="p", owner="c"), "id", number)
