"""What records become in a table, and those that are no rows of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from components.commands.topic_to_table.errors import BadRecord, UnsuitableTable
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.streams.format import NewRecord
from registry.errors import NotFound
from registry.inputs import TableDraft
from registry.json_text import JsonText
from tests.integration.components.commands.topic_to_table.harness import Shop, finish, open_shop, order, orders
from tests.lake import SIMPLE, read_rows

HEADER = StructType(NestedField(10, "name", StringType(), required=True), NestedField(11, "value", BinaryType()))
RECORD = Schema(
    NestedField(1, "partition", IntegerType(), required=True),
    NestedField(2, "offset", LongType(), required=True),
    NestedField(3, "timestamp", TimestamptzType(), required=True),
    NestedField(4, "key", StringType()),
    NestedField(5, "value", BinaryType()),
    NestedField(6, "headers", ListType(7, HEADER, element_required=False)),
    NestedField(8, "note", StringType()),
)


@pytest.fixture
async def shop(sqlite_url: str, warehouse: Path, request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    async with open_shop(sqlite_url, warehouse, getattr(request, "param", SIMPLE)) as opened:
        yield opened


async def test_a_bad_record_stops_the_batch_and_nothing_is_written(shop: Shop) -> None:
    await shop.produce((0, orders(0, 20)), (1, [*orders(20, 7), b'{"id": "x"}', *orders(27, 5)]))
    with pytest.raises(BadRecord, match=r"orders/1, offset 7: column 'id' "):
        await finish(shop.sink())
    assert await shop.ids() == []
    assert await shop.store.get_consumer_offsets("to-table:shop.orders") == []
    await shop.assert_tidy()


async def test_bad_records_are_skipped_and_counted(shop: Shop) -> None:
    bad = [None, b"", b"{", b'{"id": 1.5}', b"[1]", order(1, more=2), b'{"id":1}{"id":2}', b'{"id":1,"name":"\xff"}']
    given: list[bytes | NewRecord | None] = []
    for number, one in enumerate(bad):
        given += [*orders(number * 10, 10), one]
    await shop.produce((0, given))
    sink = await finish(shop.sink(bad="skip"))
    assert (sink.totals.records, sink.totals.rows, sink.totals.skipped) == (88, 80, 8)
    assert await shop.ids() == list(range(80))
    await shop.produce((0, bad))
    again = await finish(shop.sink(bad="skip"))
    assert (again.totals.batches, again.totals.rows, again.totals.skipped, again.totals.files) == (1, 0, 8, 0)
    assert (await finish(shop.sink())).totals.batches == 0


async def test_columns_that_a_value_does_not_have_are_null(shop: Shop) -> None:
    await shop.produce((0, [b'{"id": 1}', b' {"day": null, "id": 2} ', b'{"id":\n3}']))
    await finish(shop.sink())
    rows = await read_rows(shop.store, shop.table)
    assert sorted((row["id"], row["name"], row["day"]) for row in rows) == [(n, None, None) for n in (1, 2, 3)]


async def test_the_newest_schema_is_used(shop: Shop) -> None:
    await shop.produce((0, orders(0, 5)))
    await finish(shop.sink())
    await shop.produce((0, [order(5, price=7)]))
    with pytest.raises(BadRecord, match="offset 5: column 'price' is not in the table"):
        await finish(shop.sink())
    metadata = await shop.store.get_table_metadata(shop.table.id)
    assert metadata is not None
    now = TableSchema.of(metadata, table="shop.orders").iceberg
    wider = Schema(*now.fields, NestedField(9, "price", LongType()))
    draft = TableDraft(schema=JsonText(wider.model_dump_json()))
    await shop.store.add_schema_version(shop.table.id, draft, expected=1)
    await finish(shop.sink())
    (file,) = [file for file in await shop.store.list_files(shop.table.id) if file.schema_version == 2]
    assert file.row_count == 1


@pytest.mark.parametrize("shop", [RECORD], indirect=True)
async def test_records_as_they_are(shop: Shop) -> None:
    at = 1_700_000_000_000
    await shop.produce(
        (
            1,
            [
                NewRecord(b"\xff", key=b"k", timestamp=at, headers=(("h", b"x"), ("i", None))),
                NewRecord(None, timestamp=at),
            ],
        )
    )
    sink = await finish(shop.sink(values="record"))
    assert sink.totals.rows == 2
    first, second = sorted(await read_rows(shop.store, shop.table), key=lambda row: row["offset"])
    assert first == {
        "partition": 1, "offset": 0, "timestamp": datetime.fromtimestamp(at / 1000, UTC), "key": "k", "value": b"\xff",
        "headers": [{"name": "h", "value": b"x"}, {"name": "i", "value": None}], "note": None,
    }  # fmt: skip
    assert (second["offset"], second["key"], second["value"], second["headers"] or []) == (1, None, None, [])
    await shop.produce((1, [NewRecord(b"", key=b"\xff")]))
    with pytest.raises(BadRecord, match=r"orders/1, offset 2: column 'key' is not UTF-8"):
        await finish(shop.sink(values="record"))


async def test_invalid_requests(shop: Shop) -> None:
    with pytest.raises(UnsuitableTable, match="has none of the columns key, value"):
        await finish(shop.sink(values="record"))
    with pytest.raises(NotFound, match=r"no table shop\.nothing"):
        await finish(shop.sink(table="shop.nothing"))
    with pytest.raises(NotFound, match="nothing"):
        await finish(shop.sink(topic="nothing"))
    assert (await shop.store.get_consumer_offsets("to-table:shop.orders")) == []


async def test_names_of_one_table_are_one_group(shop: Shop) -> None:
    assert (
        shop.sink(table="t")._options.group_id == shop.sink(table="default.t")._options.group_id == "to-table:default.t"
    )
