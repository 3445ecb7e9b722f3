"""Inserts into real registries and a real directory."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import NestedField, StringType

from astha.subscribers.context import ComponentContext
from astha.testing import ManualClock
from components.lib.storage_manager import NoSuchTable, RowsRefused, StorageManager, StorageSettings
from registry.contract import MetadataStore
from registry.json_text import JsonText, parse_json_as
from registry.models import ColumnStats
from tests.contracts.contents import assert_counted
from tests.fixtures.lake import OpenManager
from tests.lake import EVERYTHING, FULL_ROW, SIMPLE, create_table, files_below, order_of, read_rows, table_schema
from tests.waiting import eventually


def rows(*ids: int, day: int = 1) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}", "day": date(2024, 5, day)} for number in ids]


def table_of(*ids: int, day: int = 1) -> pa.Table:
    return pa.Table.from_pylist(rows(*ids, day=day))


async def test_rows_become_a_registered_file(manager: StorageManager, store: MetadataStore, warehouse: Path) -> None:
    table = await create_table(store, warehouse)
    inserted = await manager.insert("shop.orders", table_of(1, 2, 3))
    (file,) = await inserted.registered
    assert inserted.rows == 3
    assert file.file_path.startswith(f"{table.location}/data/")
    assert (file.row_count, file.schema_version, file.operation, file.file_type) == (3, 1, "insert", "parquet")
    assert file.column_stats is not None
    assert parse_json_as(file.column_stats, dict[int, ColumnStats])[1].value_count == 3
    assert await read_rows(store, table) == rows(1, 2, 3)
    assert files_below(warehouse) == {file.file_path}
    await assert_counted(store, table.id)


@pytest.mark.parametrize(
    "data",
    [
        rows(1, 2),
        table_of(1, 2),
        table_of(1, 2).to_batches()[0],
        [table_of(1), table_of(2)],
        pa.RecordBatchReader.from_batches(table_of(1).schema, table_of(1, 2).to_batches(1)),
    ],
    ids=["rows", "table", "batch", "tables", "reader"],
)
async def test_every_kind_of_input(manager: StorageManager, store: MetadataStore, warehouse: Path, data: Any) -> None:
    table = await create_table(store, warehouse)
    if isinstance(data, pa.RecordBatchReader):  # read once, and there are two databases
        data = pa.RecordBatchReader.from_batches(table_of(1).schema, table_of(1, 2).to_batches(1))
    await manager.insert(table.id, data, sync=True)
    assert await read_rows(store, table) == rows(1, 2)


async def test_an_insert_without_rows_leaves_nothing(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    nothing: tuple[Any, ...] = ([], table_of(1).slice(1), iter([]))
    for data in nothing:
        inserted = await manager.insert(table.id, data, sync=True)
        assert (inserted.rows, await inserted.registered) == (0, [])
    assert files_below(warehouse) == set()


async def test_files_of_all_partitions_are_registered_in_one_transaction(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    schema = table_schema(partition=[(3, DayTransform(), "day_day"), (2, IdentityTransform(), "name")])
    table = await create_table(store, warehouse, schema=schema)
    data = [
        *rows(1, 2), *rows(3, day=2), {"id": 4, "name": None, "day": None}, {"id": 5, "name": "a/b=c%", "day": None},
    ]  # fmt: skip
    inserted = await manager.insert(table.id, data, sync=True)
    files = await inserted.registered
    assert sorted(file.partition_path for file in files) == [
        "day_day=2024-05-01/name=n1",
        "day_day=2024-05-01/name=n2",
        "day_day=2024-05-02/name=n3",
        "day_day=__HIVE_DEFAULT_PARTITION__/name=__HIVE_DEFAULT_PARTITION__",
        "day_day=__HIVE_DEFAULT_PARTITION__/name=a%2Fb%3Dc%25",
    ]
    assert len({file.created_at for file in files}) == 1
    assert sorted(await read_rows(store, table), key=lambda row: int(row["id"])) == data
    await assert_counted(store, table.id)


async def test_large_inserts_are_split_into_ranges(
    store: MetadataStore, warehouse: Path, open_manager: OpenManager
) -> None:
    manager = await open_manager(StorageSettings(target_file_bytes=8_000, buffer_bytes=100_000))
    schema = table_schema(order=order_of((1, IdentityTransform(), "asc first")))
    table = await create_table(store, warehouse, schema=schema)
    whole = table_of(*reversed(range(5_000)))
    first = await manager.insert(table.id, whole)
    bounds = [parse_json_as(JsonText(file.column_stats or ""), dict[int, ColumnStats])[1] for file in first.files]
    ranges = [tuple(int.from_bytes(b64decode(end or ""), "little") for end in (one.lower, one.upper)) for one in bounds]
    assert [number for one in ranges for number in one] == sorted(number for one in ranges for number in one)
    for data in (whole, iter(whole.to_batches(100))):
        inserted = await manager.insert(table.id, data, sync=True)
        assert len(inserted.files) > 2
        assert max(file.file_size for file in inserted.files) < 24_000
    assert len(await read_rows(store, table)) == 15_000


class StrideClock(ManualClock):
    """Everything that is timed takes a hundredth of a second, and sleeping callers are never woken."""

    def monotonic(self) -> float:
        self._elapsed += 0.01
        return super().monotonic()


async def test_a_flush_does_not_wait_for_the_registrars_pause(
    store: MetadataStore, warehouse: Path, context: ComponentContext, open_manager: OpenManager
) -> None:
    table = await create_table(store, warehouse)
    manager = await open_manager(other=msgspec.structs.replace(context, clock=StrideClock()))
    first = await manager.insert(table.id, rows(1))
    await eventually(first.registered.done, "the first group, which no caller has awaited")
    later = await manager.insert(table.id, rows(2))
    async with asyncio.timeout(60):
        await manager.flush()
    assert later.registered.done()


async def test_inserts_are_asynchronous_by_default(
    store: MetadataStore, warehouse: Path, open_manager: OpenManager
) -> None:
    table = await create_table(store, warehouse)
    manager = await open_manager()
    inserted = await manager.insert(table.id, rows(1))
    assert not inserted.registered.done()
    assert len(files_below(warehouse)) == 1
    await manager.flush()
    assert inserted.registered.done()
    assert (await manager.insert(table.id, rows(2), sync=True)).registered.done()
    waiting = await open_manager(StorageSettings(sync=True))
    assert (await waiting.insert(table.id, rows(3))).registered.done()
    assert not (await waiting.insert(table.id, rows(4), sync=False)).registered.done()
    await waiting.flush()
    assert sorted(row["id"] for row in await read_rows(store, table)) == [1, 2, 3, 4]


async def test_an_insert_with_a_bad_row_is_refused_as_a_whole(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    good, bad = rows(1, 2), {"id": None, "name": "x", "day": None}
    for data in ([*good, bad], pa.Table.from_pylist([*good, bad]), iter([table_of(1, 2), pa.Table.from_pylist([bad])])):
        with pytest.raises(RowsRefused, match=r"row 3, column 'id'") as refused:
            await manager.insert(table.id, data)
        assert refused.value.row == 3
    assert files_below(warehouse) == set()
    assert await store.list_files(table.id) == []


async def test_a_reader_that_fails_midway_leaves_nothing(
    store: MetadataStore, warehouse: Path, open_manager: OpenManager
) -> None:
    manager = await open_manager(StorageSettings(target_file_bytes=1_000))
    table = await create_table(store, warehouse)

    def batches() -> Iterator[pa.Table]:
        for number in range(20):
            yield table_of(*range(number * 100, number * 100 + 100))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await manager.insert(table.id, batches())
    assert files_below(warehouse) == set()
    assert await store.list_files(table.id) == []


async def test_missing_tables_are_refused(manager: StorageManager, store: MetadataStore, warehouse: Path) -> None:
    table = await create_table(store, warehouse)
    for name in ("shop.nothing", "orders", 4711):
        with pytest.raises(NoSuchTable, match=str(name)):
            await manager.insert(name, rows(1))
    await store.alter_table(table.id, status="dropping")
    with pytest.raises(NoSuchTable, match="is being dropped"):
        await manager.insert(table.id, rows(1))
    with pytest.raises(TypeError, match="not a str"):
        await manager.insert(table.id, "rows")


async def test_a_new_schema_version_is_read_when_rows_need_it(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    await manager.insert(table.id, rows(1), sync=True)
    wider = table_schema(Schema(*SIMPLE.fields, NestedField(4, "note", StringType())))
    await store.add_schema_version(table.id, wider.draft(), expected=1)
    inserted = await manager.insert(table.id, [{**rows(2)[0], "note": "new"}], sync=True)
    assert inserted.schema_version == 2
    assert [row.get("note") for row in await read_rows(store, table)] == [None, "new"]


async def test_an_insert_into_a_table_dropped_meanwhile_fails(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    await manager.insert("shop.orders", rows(1), sync=True)
    await store.drop_table(table.id)
    before = files_below(warehouse)
    again = await create_table(store, warehouse)
    inserted = await manager.insert("shop.orders", rows(2))  # still believes in the old one
    with pytest.raises(Exception, match=f"table {table.id}"):
        await inserted.registered
    assert files_below(warehouse) == before
    await manager.insert("shop.orders", rows(3), sync=True)
    assert await read_rows(store, again) == rows(3)


async def test_many_inserts_at_once(manager: StorageManager, store: MetadataStore, warehouse: Path) -> None:
    table = await create_table(store, warehouse, schema=table_schema(EVERYTHING))
    inserted = await asyncio.gather(
        *(manager.insert(table.id, [{**FULL_ROW, "id": number}] * 3) for number in range(40))
    )
    await manager.flush()
    assert all(one.registered.done() for one in inserted)
    assert len(await read_rows(store, table)) == 120
    await assert_counted(store, table.id)


async def test_names_ahead_are_given_back(
    store: MetadataStore, warehouse: Path, open_manager: OpenManager, context: Any
) -> None:
    table = await create_table(store, warehouse)
    async with StorageManager(context) as manager:
        for number in range(10):
            await manager.insert(table.id, rows(number))
        await manager.flush()
        ahead = await store.list_stale_intents(0)
        assert 0 < len(ahead) <= 256 + 256 // 4  # a refill of 256 starts when a quarter of it is left
    assert await store.list_stale_intents(0) == []
    assert len(files_below(warehouse)) == 10


async def test_engine_and_format_come_from_the_table(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    schema = table_schema(format="json", compression="gzip")
    draft = schema.draft()
    table = await store.create_table("shop", "lines", f"file://{warehouse}/lines", draft)
    (file,) = await (await manager.insert(table.id, rows(1), sync=True)).registered
    assert (file.file_type, file.is_compressed, file.file_name[-8:]) == ("json", True, ".json.gz")
    assert JsonText("{}") != file.column_stats


async def test_a_data_frame_of_pandas(manager: StorageManager, store: MetadataStore, warehouse: Path) -> None:
    """An index without a name is not a column; NaN is null. Frames of other libraries use Arrow's own protocol."""
    pandas = pytest.importorskip("pandas")
    table = await create_table(store, warehouse)
    frame = pandas.DataFrame({"id": [1, 2, 3], "name": ["a", None, "c"], "day": [date(2024, 5, 1)] * 3})
    await (await manager.insert(table.id, frame[frame["id"] > 1], sync=True)).registered
    found = await read_rows(store, table)
    assert [(row["id"], row["name"]) for row in found] == [(2, None), (3, "c")]


async def test_a_missing_column_names_the_option_that_fills_it(
    manager: StorageManager, store: MetadataStore, warehouse: Path
) -> None:
    table = await create_table(store, warehouse)
    with pytest.raises(RowsRefused, match="--fill-missing"):
        await manager.insert(table.id, pa.table({"id": [1]}))
