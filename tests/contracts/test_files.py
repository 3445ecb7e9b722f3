"""Data files: added, removed and swapped, in one transaction with the statistics that count them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound
from registry.inputs import FileDraft, Registration
from registry.json_text import JsonText, parse_json_as
from registry.models import FileOperation, FileSizes, LakeTable, TableFile
from tests.contracts.bad_input import BAD_COUNTS, BAD_NAMES, BAD_PATHS, BAD_TEXT, Refused
from tests.contracts.contents import assert_counted, contents, unchanged
from tests.doubles.clock import ManualClock
from tests.samples import TABLE, file


@pytest.fixture
async def table(store: MetadataStore) -> LakeTable:
    return await store.create_table("db", "t", "s3://lake/t", TABLE)


async def _paths(store: MetadataStore, table: LakeTable) -> set[str]:
    return {row.file_path async for row in store.stream_files(table.id)}


async def _awaiting(store: MetadataStore, table: LakeTable) -> set[str]:
    return {row.file_path for row in await store.list_files_awaiting_deletion(table_id=table.id)}


class TestAdding:
    async def test_all_columns_of_a_file_are_stored(
        self, store: MetadataStore, table: LakeTable, clock: ManualClock
    ) -> None:
        clock.advance(10)
        now = clock.now_ms()
        stats = JsonText('{"1":{"lower":"a\\"b\\\\c","value_count":10}}')
        draft = FileDraft(
            file_path='s3://lake/t/d=1/ü "q" \\ {x}.parquet', file_size=2**62, row_count=2**61, schema_version=1,
            partition_path="d=1/e={\"}", file_type="orc", checksum='"\\', is_compressed=False, column_stats=stats,
        )  # fmt: skip
        (row,) = await store.add_files(table.id, [draft], operation="import", operation_id="op-1")
        assert row == TableFile(
            row.id, table.id, 'ü "q" \\ {x}.parquet', draft.file_path, 2**62, "orc", 'd=1/e={"}', 2**61, '"\\', False,
            1, stats, "import", "op-1", now, now,
        )  # fmt: skip
        assert row.is_compressed is False
        assert await store.list_files(table.id) == [row]
        assert await store.get_files(table.id, [draft.file_path, "elsewhere"]) == [row]

    async def test_a_file_with_defaults(self, store: MetadataStore, table: LakeTable) -> None:
        (row,) = await store.add_files(table.id, [FileDraft(file_path="f", file_size=0, row_count=0, schema_version=1)])
        assert (row.checksum, row.column_stats, row.operation, row.operation_id) == (None, None, "insert", None)
        assert (row.file_name, row.partition_path, row.is_compressed) == ("f", "", True)
        assert await store.list_files(table.id) == [row]

    async def test_rows_are_returned_in_the_order_of_the_drafts(self, store: MetadataStore, table: LakeTable) -> None:
        paths = [f"s3://lake/t/{number * 7919 % 1000}" for number in range(1_000)]
        rows = await store.add_files(table.id, [file(path) for path in paths])
        assert [row.file_path for row in rows] == paths
        assert len({row.id for row in rows}) == 1_000

    async def test_statistics_count_added_files(
        self, store: MetadataStore, table: LakeTable, clock: ManualClock
    ) -> None:
        clock.advance(10)
        await store.add_files(
            table.id,
            [file("1", rows=1, size=10), file("2", rows=2, size=20, partition="b"), file("3", rows=4, partition="b")],
        )
        found = {
            row.partition_path: (row.row_count, row.file_count, row.total_size)
            for row in await store.get_statistics(table.id)
        }
        assert found == {"": (1, 1, 10), "b": (6, 2, 1_020)}
        clock.advance(10)
        await store.add_files(table.id, [file("4", rows=8, size=5, partition="b")])
        now = await store.get_table_by_id(table.id)
        assert now is not None
        assert (now.row_count, now.file_count, now.total_size) == (15, 4, 1_035)
        assert (now.last_modified, now.updated_at) == (clock.now_ms(), clock.now_ms())
        other, changed = await store.get_statistics(table.id)
        assert (other.last_modified, changed.last_modified) == (clock.now_ms() - 10, clock.now_ms())
        assert (changed.created_at, changed.updated_at) == (clock.now_ms() - 10, clock.now_ms())
        await assert_counted(store, table.id)

    async def test_an_empty_call_does_nothing(self, store: MetadataStore, table: LakeTable) -> None:
        async with unchanged(store):
            assert await store.add_files(table.id, []) == []
            await store.remove_files(table.id, [], reason="none")
            assert await store.swap_files(table.id, [], [], operation_id="none") == []
            assert await store.get_files(table.id, []) == []

    async def test_a_path_is_unique_in_its_table(self, store: MetadataStore, table: LakeTable) -> None:
        await store.add_files(table.id, [file("1")])
        async with unchanged(store):
            with pytest.raises(AlreadyExists, match="1"):
                await store.add_files(table.id, [file("2"), file("1")])
            with pytest.raises(Invalid, match="twice"):
                await store.add_files(table.id, [file("2"), file("2")])
        second = await store.create_table("db", "u", "s3://lake/u", TABLE)
        await store.add_files(second.id, [file("1")])

    async def test_a_missing_table_or_version_is_named(self, store: MetadataStore, table: LakeTable) -> None:
        await store.record_intents(["1"], purpose="insert", owner="w")
        async with unchanged(store):
            with pytest.raises(NotFound, match=f"table {table.id + 1} does not exist"):
                await store.add_files(table.id + 1, [file("1")])
            with pytest.raises(NotFound, match="no schema version 2"):
                await store.add_files(table.id, [file("1"), file("2", version=2)])

    async def test_files_for_a_dropped_table_change_nothing(self, store: MetadataStore, table: LakeTable) -> None:
        """The purged file still awaits deletion, and the intent is still there."""
        await store.add_files(table.id, [file("1")])
        await store.drop_table(table.id, purge=True)
        await store.record_intents(["1", "2"], purpose="insert", owner="w")
        async with unchanged(store):
            with pytest.raises(NotFound):
                await store.add_files(table.id, [file("1"), file("2")])

    async def test_adding_completes_upload_intents(self, store: MetadataStore, table: LakeTable) -> None:
        await store.record_intents(["1", "2", "3"], purpose="insert", owner="w")
        await store.add_files(table.id, [file("1"), file("3")])
        assert [intent.path for intent in await store.list_stale_intents(0)] == ["2"]

    async def test_files_need_upload_intents_of_their_owner(self, store: MetadataStore, table: LakeTable) -> None:
        await store.record_intents(["1", "2"], purpose="insert", owner="w")
        await store.record_intents(["2"], purpose="insert", owner="cleaner")
        await store.record_intents(["4"], purpose="insert", owner="w")
        await store.add_files(table.id, [file("4")], intents_of="w")
        (live,) = await store.list_files(table.id)
        for path in ("2", "3"):
            async with unchanged(store):
                with pytest.raises(Conflict, match="no longer owns the upload intents") as caught:
                    await store.add_files(table.id, [file("1"), file(path)], intents_of="w")
                assert caught.value.names == (path,)
                with pytest.raises(Conflict, match="no longer owns the upload intents"):
                    await store.swap_files(table.id, [live], [file(path)], operation_id="s", intents_of="w")
        await store.swap_files(table.id, [live], [file("1")], operation_id="s", intents_of="w")
        assert await _paths(store, table) == {"1"}

    async def test_a_compaction_needs_its_id(self, store: MetadataStore, table: LakeTable) -> None:
        async with unchanged(store):
            with pytest.raises(Invalid, match="operation_id"):
                await store.add_files(table.id, [file("1")], operation="compaction")
            with pytest.raises(Invalid, match="operation"):
                await store.add_files(table.id, [file("1")], operation="magic")  # type: ignore[arg-type]

    async def test_sums_beyond_64_bits_are_refused(self, store: MetadataStore, table: LakeTable) -> None:
        async with unchanged(store):
            with pytest.raises(Invalid):
                await store.add_files(table.id, [file("1", size=2**63 - 1), file("2", size=1)])
            with pytest.raises(Invalid):
                await store.add_files(table.id, [file("1", rows=2**63 - 1), file("2", rows=1, partition="b")])
        await store.add_files(table.id, [file("1", size=2**63 - 1)])
        async with unchanged(store):
            with pytest.raises(Invalid):
                await store.add_files(table.id, [file("2", size=1)])


class TestRegistering:
    async def test_files_of_several_tables_in_one_transaction(self, store: MetadataStore, table: LakeTable) -> None:
        second = await store.create_table("db", "second", "s3://lake/second", TABLE)
        await store.record_intents(["1", "2", "x"], purpose="insert", owner="w")
        answers = await store.register_files(
            [
                Registration(table_id=second.id, files=[file("1"), file("2")], intents_of="w"),
                Registration(table_id=table.id, files=[file("0", partition="p=1")]),
                Registration(table_id=second.id, files=[]),
                Registration(table_id=second.id, files=[file("x")], operation="import", intents_of="w"),
                Registration(table_id=second.id, files=[file("3")]),
            ]
        )
        assert [[(row.table_id, row.file_path) for row in rows] for rows in answers] == [
            [(second.id, "1"), (second.id, "2")],
            [(table.id, "0")],
            [],
            [(second.id, "x")],
            [(second.id, "3")],
        ]
        assert [row.operation for rows in answers for row in rows] == ["insert"] * 3 + ["import", "insert"]
        assert await store.list_stale_intents(0) == []
        for one in (table, second):
            await assert_counted(store, one.id)

    async def test_all_registrations_of_a_call_are_added_or_none(self, store: MetadataStore, table: LakeTable) -> None:
        second = await store.create_table("db", "second", "s3://lake/second", TABLE)
        await store.add_files(second.id, [file("there")])
        good = Registration(table_id=table.id, files=[file("1")])
        for bad, error in (
            (Registration(table_id=second.id, files=[file("there")]), AlreadyExists),
            (Registration(table_id=second.id + 1, files=[file("1")]), NotFound),
            (Registration(table_id=second.id, files=[file("1", version=9)]), NotFound),
            (Registration(table_id=second.id, files=[file("1")], intents_of="w"), Conflict),
            (Registration(table_id=second.id, files=[file("1")], operation="compaction"), Invalid),
            (Registration(table_id=table.id, files=[file("1")]), Invalid),
        ):
            async with unchanged(store):
                for order in ([good, bad], [bad, good]):
                    with pytest.raises(error):
                        await store.register_files(order)
        assert await store.register_files([]) == []

    async def test_concurrent_registrations_in_any_order_do_not_deadlock(
        self, store: MetadataStore, other: MetadataStore, table: LakeTable
    ) -> None:
        second = await store.create_table("db", "second", "s3://lake/second", TABLE)

        async def register(number: int) -> None:
            parts = [Registration(table_id=one.id, files=[file(f"{number}")]) for one in (table, second)]
            await (store, other)[number % 2].register_files(parts if number % 3 else parts[::-1])

        await asyncio.gather(*(register(number) for number in range(12)))
        assert await _paths(store, table) == await _paths(store, second) == {str(number) for number in range(12)}
        for one in (table, second):
            await assert_counted(store, one.id)


class TestRemoving:
    async def test_a_removed_file_awaits_deletion(
        self, store: MetadataStore, table: LakeTable, clock: ManualClock
    ) -> None:
        one, two = await store.add_files(table.id, [file("1", partition="a"), file("2", partition="b")])
        clock.advance(10)
        await store.remove_files(table.id, [one], reason="expired")
        assert await store.list_files(table.id) == [two]
        (awaiting,) = await store.list_files_awaiting_deletion(table_id=table.id)
        assert (awaiting.file_path, awaiting.file_size, awaiting.reason) == ("1", 1_000, "expired")
        assert (awaiting.table_id, awaiting.removed_at) == (table.id, clock.now_ms())
        assert parse_json_as(awaiting.file, TableFile) == one
        await assert_counted(store, table.id)

    async def test_a_partition_without_files_stays_with_zeros(self, store: MetadataStore, table: LakeTable) -> None:
        (one,) = await store.add_files(table.id, [file("1", partition="a")])
        await store.remove_files(table.id, [one], reason="expired")
        (stats,) = await store.get_statistics(table.id)
        assert (stats.partition_path, stats.row_count, stats.file_count, stats.total_size) == ("a", 0, 0, 0)

    async def test_files_gone_or_changed_are_named_and_nothing_written(
        self, store: MetadataStore, table: LakeTable, subtests: pytest.Subtests
    ) -> None:
        files = await store.add_files(table.id, [file(str(number)) for number in range(10)])
        await store.remove_files(table.id, files[:2], reason="first")
        async with unchanged(store):
            with pytest.raises(Conflict) as caught:
                await store.remove_files(table.id, files[1:4], reason="second")
            assert caught.value.names == ("1",)
            with pytest.raises(Conflict) as caught:
                await store.swap_files(table.id, files, [file("new")], operation_id="swap")
            assert sorted(caught.value.names) == ["0", "1"]
            changes: dict[str, Any] = {
                "file_name": "other", "file_path": "other", "file_size": 1, "file_type": "orc", "partition_path": "x",
                "row_count": 1, "checksum": None, "is_compressed": False, "schema_version": 2, "column_stats": None,
                "operation": "import", "operation_id": "x", "created_at": 1, "modified_at": 1,
            }  # fmt: skip
            assert {"id", "table_id", *changes} == set(TableFile.__struct_fields__)
            for field, value in changes.items():
                read = msgspec.structs.replace(files[5], **{field: value})
                with subtests.test(field), pytest.raises(Conflict):
                    await store.remove_files(table.id, [files[4], read], reason="changed")
        with pytest.raises(NotFound):
            await store.remove_files(
                table.id + 1, [msgspec.structs.replace(files[5], table_id=table.id + 1)], reason="x"
            )

    async def test_a_file_of_another_table_is_refused(self, store: MetadataStore, table: LakeTable) -> None:
        second = await store.create_table("db", "u", "s3://lake/u", TABLE)
        (one,) = await store.add_files(second.id, [file("1")])
        async with unchanged(store):
            with pytest.raises(Invalid, match="belongs to table"):
                await store.remove_files(table.id, [one], reason="x")
            lie = msgspec.structs.replace(one, table_id=table.id)
            with pytest.raises(Conflict):
                await store.remove_files(table.id, [lie], reason="x")


class TestSwapping:
    async def test_a_swap_replaces_old_files_by_new_ones(
        self, store: MetadataStore, table: LakeTable, clock: ManualClock
    ) -> None:
        old = await store.add_files(table.id, [file(str(n), rows=n, partition="ab"[n % 2]) for n in range(6)])
        await store.record_intents(["new-a"], purpose="compaction", owner="w")
        clock.advance(10)
        new = await store.swap_files(
            table.id,
            old[:4],
            [file("new-a", rows=2, partition="a"), file("new-c", partition="c")],
            operation_id="swap-1",
        )
        assert [(row.operation, row.operation_id) for row in new] == [("compaction", "swap-1")] * 2
        assert await _paths(store, table) == {"4", "5", "new-a", "new-c"}
        awaiting = await store.list_files_awaiting_deletion(table_id=table.id)
        assert {row.file_path for row in awaiting} == {"0", "1", "2", "3"}
        assert {row.reason for row in awaiting} == {"compaction swap-1"}
        assert await store.list_stale_intents(0) == []
        await assert_counted(store, table.id)

    async def test_one_of_two_concurrent_swaps_of_a_file_wins(
        self, store: MetadataStore, other: MetadataStore, table: LakeTable
    ) -> None:
        for turn in range(6):
            files = await store.add_files(table.id, [file(f"{turn}-{n}") for n in range(3)])
            results = await asyncio.gather(
                store.swap_files(table.id, files[:2], [file(f"{turn}-x")], operation_id="x"),
                other.swap_files(table.id, files[1:], [file(f"{turn}-y")], operation_id="y"),
                return_exceptions=True,
            )
            (lost,) = (result for result in results if isinstance(result, Conflict))
            assert lost.names == (f"{turn}-1",)
            assert sum(isinstance(result, list) for result in results) == 1
        await assert_counted(store, table.id)

    async def test_a_rollback_removes_files_from_those_awaiting_deletion(
        self, store: MetadataStore, table: LakeTable
    ) -> None:
        old = await store.add_files(table.id, [file("1"), file("2")])
        new = await store.swap_files(table.id, old, [file("3")], operation_id="swap")
        assert await _awaiting(store, table) == {"1", "2"}
        back = await store.swap_files(table.id, new, [file("1")], operation_id="undo", operation="rollback")
        assert [(row.file_path, row.operation) for row in back] == [("1", "rollback")]
        assert await _awaiting(store, table) == {"2", "3"}
        await assert_counted(store, table.id)

    async def test_a_swap_that_fails_writes_nothing(self, store: MetadataStore, table: LakeTable) -> None:
        old = await store.add_files(table.id, [file("1"), file("2")])
        gone = await store.add_files(table.id, [file("gone")])
        await store.remove_files(table.id, gone, reason="x")
        await store.record_intents(["3", "gone"], purpose="compaction", owner="w")
        async with unchanged(store):
            with pytest.raises(AlreadyExists):
                await store.swap_files(table.id, old[:1], [file("3"), file("2")], operation_id="s")
            with pytest.raises(NotFound, match="schema version 9"):
                await store.swap_files(table.id, old, [file("3", version=9)], operation_id="s")
            with pytest.raises(Conflict):
                await store.swap_files(table.id, [*old, *gone], [file("3")], operation_id="s")
            changed = msgspec.structs.replace(old[0], row_count=99)
            with pytest.raises(Conflict):  # a refused rollback leaves the list alone
                await store.swap_files(table.id, [changed], [file("gone")], operation_id="s", operation="rollback")
            with pytest.raises(Invalid, match="twice"):
                await store.swap_files(table.id, [old[0], old[0]], [file("3")], operation_id="s")
            with pytest.raises(Invalid, match="twice"):
                await store.swap_files(table.id, old, [file("1")], operation_id="s")

    async def test_a_swap_may_only_add_or_only_remove(self, store: MetadataStore, table: LakeTable) -> None:
        new = await store.swap_files(table.id, [], [file("1")], operation_id="s")
        assert await store.swap_files(table.id, new, [], operation_id="t") == []
        assert await _paths(store, table) == set()
        await assert_counted(store, table.id)


class TestReading:
    async def test_pages_follow_ids(self, store: MetadataStore, table: LakeTable) -> None:
        rows = await store.add_files(table.id, [file(str(n), partition="ab"[n % 2]) for n in range(10)])
        rows = sorted(rows, key=lambda row: row.id)
        assert await store.list_files(table.id, limit=4) == rows[:4]
        assert await store.list_files(table.id, after=rows[3].id, limit=4) == rows[4:8]
        assert await store.list_files(table.id, after=rows[9].id) == []
        of_a = [row for row in rows if row.partition_path == "a"]
        assert await store.list_files(table.id, partition_path="a", limit=3) == of_a[:3]
        assert [row async for row in store.stream_files(table.id, partition_path="a")] == of_a
        assert await store.list_files(table.id, partition_path="") == []
        assert await store.list_files(table.id + 1) == []

    async def test_a_stream_crosses_pages(self, store: MetadataStore, table: LakeTable) -> None:
        await store.add_files(table.id, [file(str(number)) for number in range(2_300)])
        ids = [row.id async for row in store.stream_files(table.id)]
        assert len(ids) == 2_300
        assert ids == sorted(set(ids))


class TestStatistics:
    async def test_concurrent_additions_to_a_new_partition_are_all_counted(
        self, store: MetadataStore, other: MetadataStore, table: LakeTable
    ) -> None:
        async def add(task: int) -> None:
            drafts = [file(f"{task}-{n}", rows=task, size=n, partition=f"p{(task + n) % 3}") for n in range(3)]
            await (store, other)[task % 2].add_files(table.id, drafts)

        await asyncio.gather(*(add(task) for task in range(30)))
        await assert_counted(store, table.id)
        assert len(await _paths(store, table)) == 90

    async def test_concurrent_additions_removals_and_recounts(
        self, store: MetadataStore, other: MetadataStore, table: LakeTable
    ) -> None:
        files = await store.add_files(table.id, [file(f"old-{n}", partition=f"p{n % 4}") for n in range(40)])
        calls: list[Any] = []
        for n in range(20):
            owner, rest = (store, other)[n % 2], (other, store)[n % 2]
            calls.append(owner.remove_files(table.id, files[n : n + 1], reason="x"))
            calls.append(rest.add_files(table.id, [file(f"new-{n}", partition=f"p{n % 5}")]))
            calls.append(owner.swap_files(table.id, files[20 + n : 21 + n], [file(f"s-{n}")], operation_id="s"))
            if n % 3 == 0:
                calls.append(rest.recount_statistics(table.id))
        random.Random(7).shuffle(calls)
        await asyncio.gather(*calls)
        await assert_counted(store, table.id)

    async def test_a_path_removed_and_added_concurrently_is_live_or_awaits_deletion(
        self, store: MetadataStore, other: MetadataStore, table: LakeTable
    ) -> None:
        """A live file among the files awaiting deletion would be deleted while it is read."""
        for turn in range(15):
            path = f"file-{turn}"
            (row,) = await store.add_files(table.id, [file(path)])
            results = await asyncio.gather(
                store.remove_files(table.id, [row], reason="x"),
                *(other.add_files(table.id, [file(path)]) for _ in range(3)),
                return_exceptions=True,
            )
            assert all(isinstance(result, AlreadyExists | list | None) for result in results), results
            live, awaiting = await _paths(store, table), await _awaiting(store, table)
            assert live & awaiting == set()
        await assert_counted(store, table.id)

    async def test_random_histories(self, store: MetadataStore, table: LakeTable) -> None:
        choose = random.Random(20_261_116)
        live: list[TableFile] = []
        await store.add_schema_version(table.id, TABLE, expected=1)

        def drafts(turn: int) -> list[FileDraft]:
            return [
                file(
                    f"{turn}-{n}", rows=choose.randrange(1_000), size=choose.randrange(10_000),
                    partition=choose.choice(["", "a", "b", "c/d"]), version=choose.randint(1, 2),
                )
                for n in range(choose.randrange(5))
            ]  # fmt: skip

        for turn in range(60):
            some = choose.sample(live, min(len(live), choose.randrange(4)))
            kept = [row for row in live if row not in some]
            match choose.randrange(3):
                case 0:
                    live += await store.add_files(table.id, drafts(turn))
                case 1:
                    await store.remove_files(table.id, some, reason="history")
                    live = kept
                case _:
                    live = kept + await store.swap_files(table.id, some, drafts(turn), operation_id=f"s{turn}")
        assert await _paths(store, table) == {row.file_path for row in live}
        await assert_counted(store, table.id)
        async with unchanged(store):
            counted = await store.recount_statistics(table.id)
            assert counted == await store.get_table_by_id(table.id)

    async def test_recounting_correct_statistics_changes_nothing(self, store: MetadataStore, table: LakeTable) -> None:
        await store.add_files(table.id, [file("1", partition="a"), file("2", partition="b")])
        gone = await store.get_files(table.id, ["2"])
        await store.remove_files(table.id, gone, reason="x")
        async with unchanged(store):
            await store.recount_statistics(table.id)
        with pytest.raises(NotFound):
            await store.recount_statistics(table.id + 1)


async def test_bad_input_is_named_and_nothing_written(store: MetadataStore, table: LakeTable, refused: Refused) -> None:
    (row,) = await store.add_files(table.id, [file("1")])

    async def refuse(field: str, value: Any) -> None:
        bad = msgspec.structs.replace(file("2"), **{field: value})
        await refused(store.add_files(table.id, [file("3"), bad]), field, value)
        await refused(store.swap_files(table.id, [row], [bad], operation_id="s"), field, value)

    operation: FileOperation = "insert"
    async with unchanged(store):
        for path in BAD_PATHS:
            await refuse("file_path", path)
            await refused(store.get_files(table.id, ["1", path]), "path", path)
        for path in BAD_PATHS[1:]:
            await refuse("partition_path", path)
            if path is not None:
                await refused(store.list_files(table.id, partition_path=path), "partition_path", path)
        for text in BAD_TEXT:
            await refuse("file_type", text)
            await refused(store.remove_files(table.id, [row], reason=text), "reason", text)
            if text is not None:
                await refuse("checksum", text)
                await refuse("column_stats", text)
        for name in BAD_NAMES:
            if name is not None:
                call = store.add_files(table.id, [file("2")], operation=operation, operation_id=name)
                await refused(call, "operation_id", name)
        for number in BAD_COUNTS:
            for field in ("file_size", "row_count", "schema_version"):
                await refuse(field, number)
            await refused(store.add_files(number, [file("2")]), "table_id", number)
            await refused(store.get_files(number, ["1"]), "table_id", number)
            await refused(store.list_files(number), "table_id", number)
            await refused(store.list_files(table.id, after=number), "after", number)
            await refused(store.list_files(table.id, limit=number), "limit", number)
            await refused(store.get_statistics(number), "table_id", number)
            await refused(store.recount_statistics(number), "table_id", number)
        for flag in (None, 1, "yes"):
            await refuse("is_compressed", flag)
        await refused(store.list_files(table.id, limit=0), "limit", 0)
        with pytest.raises(Invalid):  # not JSON: the database looks
            await store.add_files(table.id, [msgspec.structs.replace(file("2"), column_stats=JsonText("{"))])


async def test_the_longest_paths_fit(store: MetadataStore, table: LakeTable) -> None:
    """Incompressible, so that an index entry has its full size."""
    letters = random.Random(2)
    path, partition = ("".join(chr(letters.randrange(0x400, 0x800)) for _ in range(1_024)) for _ in range(2))
    (row,) = await store.add_files(table.id, [file(path, partition=partition)])
    assert (await contents(store))["table_files"] == [row]
    await store.record_intents([path], purpose="insert", owner="w")
    await store.remove_files(table.id, [row], reason="x")
    assert await _awaiting(store, table) == {path}


async def test_files_are_counted_by_size(store: MetadataStore) -> None:
    table = await store.create_table("db", "sizes", "s3://lake/sizes", TABLE)
    assert await store.count_file_sizes(table.id, [0, 10]) == []
    added = await store.add_files(table.id, [file(str(size), size=size) for size in (0, 9, 10, 25, 99)])
    assert await store.count_file_sizes(table.id, [0, 10, 50]) == [
        FileSizes(0, False, 2, 9), FileSizes(10, False, 2, 35), FileSizes(50, False, 1, 99),
    ]  # fmt: skip
    await store.swap_files(table.id, added[:2], [file("merged", size=9)], operation_id="one")
    assert (await store.count_file_sizes(table.id, [0, 10, 50]))[0] == FileSizes(0, True, 1, 9)
    for bounds in ([], [1, 2], [0, 5, 5], [0, 9, 3]):
        with pytest.raises(Invalid):
            await store.count_file_sizes(table.id, bounds)
