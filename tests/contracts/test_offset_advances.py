"""Registering files and advancing a group's offsets in one transaction, if the offsets are the expected ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, OffsetsMoved
from registry.inputs import Advance, FileDraft, Registration
from registry.models import ConsumerOffset, LakeTable
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, Refused
from tests.contracts.contents import assert_counted, unchanged
from tests.doubles.clock import ManualClock
from tests.samples import TABLE, file

GROUP = "to-table:db.t"


@pytest.fixture
async def table(store: MetadataStore) -> LakeTable:
    await store.create_topic("orders", 4)
    await store.ensure_consumer_group(GROUP)
    return await store.create_table("db", "t", "s3://lake/t", TABLE)


def step(partition: int, expected: int | None, reached: int, metadata: str | None = None) -> Advance:
    return Advance(GROUP, "orders", partition, expected, reached, metadata)


def brought(table: LakeTable, files: Sequence[FileDraft], *advances: Advance) -> Registration:
    return Registration(table_id=table.id, files=files, advances=advances)


async def offsets(store: MetadataStore) -> dict[int, int]:
    return {row.partition_id: row.committed_offset for row in await store.get_consumer_offsets(GROUP)}


async def test_offsets_move_with_the_files(store: MetadataStore, table: LakeTable, clock: ManualClock) -> None:
    clock.advance(10)
    ((first,),) = await store.register_files([brought(table, [file("1")], step(2, None, 5, "a"), step(0, None, 7))])
    assert first.file_path == "1"
    assert await store.get_consumer_offsets(GROUP) == [
        ConsumerOffset(GROUP, "orders", 0, 7, None, clock.now_ms()),
        ConsumerOffset(GROUP, "orders", 2, 5, "a", clock.now_ms()),
    ]
    clock.advance(10)
    await store.register_files([brought(table, [file("2")], step(0, 7, 9, 'b"\\'), step(1, None, 1))])
    assert await store.get_committed_offset(GROUP, "orders", 0) == ConsumerOffset(
        GROUP, "orders", 0, 9, 'b"\\', clock.now_ms()
    )
    assert await offsets(store) == {0: 9, 1: 1, 2: 5}
    assert {row.file_path async for row in store.stream_files(table.id)} == {"1", "2"}
    await assert_counted(store, table.id)


async def test_offsets_advance_without_files(store: MetadataStore, table: LakeTable) -> None:
    assert await store.register_files([brought(table, [], step(0, None, 3))]) == [[]]
    assert await offsets(store) == {0: 3}
    with pytest.raises(OffsetsMoved):
        await store.register_files([brought(table, [], step(0, None, 3))])
    await store.register_files([brought(table, [], step(0, 3, 3))])
    await assert_counted(store, table.id)


@pytest.mark.parametrize("expected", [None, 0, 4, 6])
async def test_another_committed_offset_refuses_the_files(
    store: MetadataStore, table: LakeTable, expected: int | None
) -> None:
    await store.commit_offset(GROUP, "orders", 1, 5)
    async with unchanged(store):
        with pytest.raises(OffsetsMoved, match=r"to-table:db\.t has offset 5 of orders/1, not") as refused:
            await store.register_files([brought(table, [file("1")], step(0, None, 9), step(1, expected, 9))])
    assert refused.value.names == ("orders/1",)


async def test_no_committed_offset_differs_from_offset_zero(store: MetadataStore, table: LakeTable) -> None:
    async with unchanged(store):
        with pytest.raises(OffsetsMoved, match="has nothing committed of orders/0, not offset 0"):
            await store.register_files([brought(table, [file("1")], step(0, 0, 9))])


async def test_all_advances_of_a_call_are_made_or_none(store: MetadataStore, table: LakeTable) -> None:
    plain = Registration(table_id=table.id, files=[file("plain")])
    async with unchanged(store):
        with pytest.raises(OffsetsMoved):
            await store.register_files([plain, brought(table, [file("1")], step(0, 1, 2))])
        with pytest.raises(OffsetsMoved):  # the second finds what the first has committed
            await store.register_files(
                [brought(table, [file("1")], step(0, None, 2)), brought(table, [file("2")], step(0, None, 3))]
            )
    answers = await store.register_files(
        [plain, brought(table, [file("1")], step(0, None, 2)), brought(table, [file("2")], step(0, 2, 3))]
    )
    assert [[row.file_path for row in rows] for rows in answers] == [["plain"], ["1"], ["2"]]
    assert await offsets(store) == {0: 3}
    await assert_counted(store, table.id)


async def test_refused_files_leave_the_offsets_unchanged(store: MetadataStore, table: LakeTable) -> None:
    await store.add_files(table.id, [file("there")])
    lost = msgspec.structs.replace(brought(table, [file("1")], step(0, None, 2)), intents_of="w")
    async with unchanged(store):
        with pytest.raises(AlreadyExists, match="already has a file with this path"):
            await store.register_files([brought(table, [file("there")], step(0, None, 2))])
        with pytest.raises(Conflict, match="no longer owns the upload intents"):
            await store.register_files([lost])
        with pytest.raises(NotFound, match=f"table {table.id} has no schema version 9"):
            await store.register_files([brought(table, [file("1", version=9)], step(0, None, 2))])


async def test_missing_groups_and_partitions_are_named(store: MetadataStore, table: LakeTable) -> None:
    async with unchanged(store):
        for advance, named in (
            (Advance("unknown", "orders", 0, None, 1), "consumer group 'unknown' does not exist"),
            (Advance(GROUP, "nothing", 0, None, 1), "nothing"),
            (Advance(GROUP, "orders", 4, None, 1), "partition 4"),
        ):
            with pytest.raises(NotFound, match=named):
                await store.register_files([brought(table, [file("1")], advance)])
        with pytest.raises(NotFound, match="table 999 does not exist"):
            await store.register_files([Registration(table_id=999, files=[], advances=[step(0, None, 1)])])


@pytest.mark.parametrize("begun", [False, True])
async def test_one_of_many_concurrent_advances_wins(
    store: MetadataStore, other: MetadataStore, table: LakeTable, begun: bool
) -> None:
    """With an existing offset row, and without one."""
    for turn in range(10):
        await store.delete_consumer_group(GROUP)
        await store.ensure_consumer_group(GROUP)
        expected = 5 if begun else None
        if begun:
            await store.commit_offset(GROUP, "orders", 0, 5)
        calls = [
            (store, other)[n % 2].register_files([brought(table, [file(f"{turn}-{n}")], step(0, expected, 9))])
            for n in range(6)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, list) for result in results) == 1, results
        assert sum(isinstance(result, OffsetsMoved) for result in results) == 5, results
    assert len(await store.list_files(table.id)) == 10
    await assert_counted(store, table.id)


async def test_a_concurrent_commit_is_compared_or_comes_later(
    store: MetadataStore, other: MetadataStore, table: LakeTable
) -> None:
    """No offset is moved without being compared."""
    second = await store.create_table("db", "u", "s3://lake/u", TABLE)
    for turn in range(10):
        await store.delete_consumer_group(GROUP)
        await store.ensure_consumer_group(GROUP)
        by_hand, here, there = await asyncio.gather(
            other.commit_offset(GROUP, "orders", 0, 100),
            store.register_files([brought(table, [file(f"{turn}")], step(0, None, 9))]),
            other.register_files([brought(second, [file(f"{turn}")], step(0, None, 9))]),
            return_exceptions=True,
        )
        assert by_hand is None
        assert isinstance(here, OffsetsMoved) or isinstance(there, OffsetsMoved)
        assert await offsets(store) == {0: 100}
    files = len(await store.list_files(table.id)) + len(await store.list_files(second.id))
    assert files <= 10


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, table: LakeTable, refused: Refused) -> None:
    good = step(0, None, 5)

    async def refuse(field: str, value: object) -> None:
        bad = msgspec.structs.replace(good, **{field: value})
        await refused(store.register_files([brought(table, [file("1")], good, bad)]), field, value)

    async with unchanged(store):
        for name in BAD_NAMES:
            await refuse("group_id", name)
            await refuse("topic", name)
        for number in BAD_COUNTS:
            await refuse("partition_id", number)
            await refuse("committed_offset", number)
            if number is not None:
                await refuse("expected", number)
        with pytest.raises(Invalid, match="advances twice in this partition"):
            await store.register_files([brought(table, [file("1")], good, good)])
        with pytest.raises(Invalid, match="is below the expected 6"):
            await store.register_files([brought(table, [file("1")], step(0, 6, 5))])
