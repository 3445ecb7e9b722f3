"""Records that are not rows: skipped on request, else reported."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, ListType, LongType, NestedField

from components.commands.topic_to_table.conversion import Conversion, row_form
from components.commands.topic_to_table.errors import BadRecord
from tests.lake import table_schema

SCHEMA = table_schema(
    Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "price", DecimalType(9, 2)),
        NestedField(3, "scores", ListType(4, LongType(), element_required=False)),
    )
)
DEEP = b"[" * 1_200 + b"]" * 1_200
BAD = [
    b'{"id": 1, "scores": %b}' % DEEP,
    b'{"id": 1, "unknown": %b}' % DEEP,
    b'{"id": 1, "price": 1e-999999999}',
    b'{"id": 1, "price": "1E-41"}',
    b'{"id": 1, "price": "1\\u0065-41"}',
    b'{"id": 1, "price": "1e\\u002d41"}',
    b'{"id": 1, "price": 0.%b1}' % (b"0" * 60),
    b'{"id": 1, "price": 12345678}',  # ten digits with its scale
    b'{"id": 1, "price": "12345678"}',
    b'{"id": 1e999999999999999999}',
    b'{"id": %b}' % (b"9" * 5_000),
    b"\xff\xfe",
]


def _records(values: list[bytes]) -> pa.RecordBatch:
    places = range(len(values))
    return pa.record_batch(
        [pa.array([0] * len(values), pa.int32()), pa.array(places, pa.int64()), pa.array(values, pa.binary())],
        ["partition", "offset", "value"],
    )


@pytest.mark.parametrize("bad", BAD, ids=lambda value: repr(value[:40]))
def test_a_hostile_record_is_skipped_or_named(bad: bytes) -> None:
    batch = _records([b'{"id": 1, "price": 1.25}', bad, b'{"id": 3}'])
    skipping = Conversion(row_form(SCHEMA, "json"), "orders", skip=True)
    rows = pa.concat_tables(skipping.tables([batch]))
    assert rows["id"].to_pylist() == [1, 3]
    assert (skipping.skipped, skipping.records) == (1, {0: 3})
    stopping = Conversion(row_form(SCHEMA, "json"), "orders", skip=False)
    with pytest.raises(BadRecord, match=r"orders/0, offset 1: "):
        list(stopping.tables([batch]))


def test_usual_decimals_are_still_read_at_once() -> None:
    from components.commands.topic_to_table.json_columns import JsonColumns

    values = [b'{"id": 1, "price": 1.25}', b'{"id": 2, "price": "7"}', b'{"id": 3, "price": 1e2}', b'{"id": 4}']
    assert JsonColumns(SCHEMA)._at_once(pa.array(values, pa.binary())) is not None
