"""Schema versions, parsed from the registry's JSON and written to it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import NestedField

from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from registry.inputs import TableDraft
from registry.json_text import to_json_text
from registry.models import TableMetadata
from tests.unit.components.lib.lake.schemas import NESTED, PRIMITIVES

EVERY_TYPE = Schema(*(NestedField(place, name, kind) for place, (name, kind) in enumerate(PRIMITIVES.items(), 1)))


def stored(draft: TableDraft, version: int = 1) -> TableMetadata:
    return TableMetadata(
        id=1, table_id=7, schema_version=version, schema=draft.schema, storage_engine=draft.storage_engine,
        engine_config=draft.engine_config, format=draft.format, compression=draft.compression,
        partition_by=draft.partition_by, sort_by=draft.sort_by, properties=draft.properties,
        last_modified=0, created_at=0, updated_at=0,
    )  # fmt: skip


def documents(schema: Any, partition_by: Any = (), sort_by: Any = ()) -> TableMetadata:
    draft = TableDraft(
        schema=to_json_text(schema), partition_by=to_json_text(partition_by), sort_by=to_json_text(sort_by)
    )
    return stored(draft, 3)


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


ID = {"id": 1, "name": "id", "required": True, "type": "long"}
TS = {"id": 2, "name": "ts", "required": False, "type": "timestamptz"}


def test_the_stored_json_is_that_of_decision_0010() -> None:
    metadata = documents(
        struct(ID, TS),
        [{"source-id": 2, "field-id": 1000, "transform": "day", "name": "ts_day"}],
        [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
    )
    schema = TableSchema.of(metadata)
    assert (schema.version, schema.format, schema.compression) == (3, "parquet", "zstd")
    assert schema.iceberg.find_field("id").required
    assert schema.partition == PartitionSpec(PartitionField(2, 1000, DayTransform(), "ts_day"))
    assert schema.order.fields == [SortField(1, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST)]
    draft = schema.draft()
    assert (draft.schema, draft.partition_by, draft.sort_by) == (metadata.schema, metadata.partition_by,
                                                                 metadata.sort_by)  # fmt: skip


@pytest.mark.parametrize("schema", [EVERY_TYPE, NESTED], ids=["primitives", "nested"])
def test_a_draft_is_read_back(schema: Schema) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), schema.fields[0].name))
    original = TableSchema(4, schema, spec, SortOrder(SortField(1, IdentityTransform())), "json", "gzip")
    draft = original.draft(properties={"a": "b"})
    assert (draft.storage_engine, draft.properties) == ("json", '{"a":"b"}')
    assert TableSchema.of(stored(draft, 4)) == original


def test_the_default_null_order_follows_the_direction() -> None:
    sort_by = [{"source-id": 1, "direction": "desc"}, {"source-id": 2}]
    order = TableSchema.of(documents(struct(ID, TS), (), sort_by)).order
    assert [field.null_order for field in order.fields] == [NullOrder.NULLS_LAST, NullOrder.NULLS_FIRST]


def test_arrow_fields_carry_ids_at_every_depth_through_parquet(tmp_path: Any) -> None:
    arrow = TableSchema.of(stored(TableSchema(1, NESTED, PartitionSpec(), SortOrder()).draft())).arrow()
    file = tmp_path / "file.parquet"
    pq.write_table(arrow.empty_table(), file)
    leaves = [pq.read_schema(file).field(name) for name in ("id", "place", "tags", "prices")]
    assert list(_ids(leaves)) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [field.nullable for field in leaves] == [False, True, False, True]
    assert not arrow.field("place").type.field("city").nullable


def _ids(fields: Any) -> Any:
    for field in fields:
        yield int(field.metadata[b"PARQUET:field_id"])
        kind = field.type
        if pa.types.is_map(kind):
            yield from _ids([kind.key_field, kind.item_field])
        elif pa.types.is_large_list(kind) or pa.types.is_list(kind):
            yield from _ids([kind.value_field])
        elif pa.types.is_struct(kind):
            yield from _ids(kind.fields)


@pytest.mark.parametrize(
    ("schema", "partition_by", "sort_by", "said"),
    [
        ([], (), (), "not an Iceberg schema"),
        ({"type": "struct"}, (), (), "not an Iceberg schema"),
        (struct({"id": 1, "name": "a", "type": "lnog"}), (), (), "fields.0.type: Unsupported field type: 'lnog'"),
        (struct({"name": "a", "type": "long"}), (), (), "fields.0.id"),
        (struct(ID, {**TS, "id": 1}), (), (), "column ts: id 1 is that of id"),
        (struct({**ID, "id": 0}), (), (), "column id: id 0 is not between"),
        (struct({**ID, "name": ""}), (), (), "has no name"),
        (struct(ID, {**TS, "name": "id"}), (), (), "multiple fields for name id"),
        (struct({**ID, "type": "timestamp_ns"}), (), (), "column id: type timestamp_ns needs Iceberg v3"),
        (struct({**ID, "type": "unknown"}), (), (), "column id: type unknown needs Iceberg v3"),
        (struct({**ID, "type": {"type": "list", "element-id": 5, "element": "geometry", "element-required": True}}),
         (), (), "column id.element: type geometry"),
        (struct({**ID, "type": "variant"}), (), (), "variant"),
        (struct({**ID, "initial-default": 5}), (), (), "column id: default values need Iceberg v3"),
        (struct({**ID, "type": "decimal(50,2)"}), (), (), "precision must be between 1 and 38"),
        (struct({**ID, "type": "decimal(5,6)"}), (), (), "more digits after the point"),
        (struct(ID), {}, (), "partition_by is not a list"),
        (struct(ID), [{"source-id": 9, "field-id": 1000, "transform": "identity", "name": "x"}], (),
         "Cannot find source column"),
        (struct(ID), [{"source-id": 1, "field-id": 1000, "transform": "day", "name": "x"}], (), "type long"),
        (struct(ID), [{"source-id": 1, "field-id": 1000, "transform": "week", "name": "x"}], (), "unknown transform"),
        (struct(ID), [{"source-id": 1, "field-id": 1000, "transform": "bucket[0]", "name": "x"}], (), "between 1 and"),
        (struct(ID), [{"source-id": 1, "field-id": 1000, "transform": "bucket[4]", "name": "id"}], (),
         "name that exists in schema"),
        (struct(ID), [{"source-id": 1, "field-id": 1000, "transform": "bucket[4]", "name": "x"},
                      {"source-id": 1, "field-id": 1000, "transform": "bucket[5]", "name": "y"}], (), "appears twice"),
        (struct({**ID, "type": "double"}),
         [{"source-id": 1, "field-id": 1000, "transform": "identity", "name": "id"}], (),
         "a double can't be a partition's value"),
        (struct(ID), (), [{"source-id": 9, "transform": "identity"}], "sort_by: Cannot find source column"),
        (struct(ID), (), [{"source-id": 1, "direction": "up"}], "sort_by: direction"),
    ],
)  # fmt: skip
def test_problems_name_table_and_version(schema: Any, partition_by: Any, sort_by: Any, said: str) -> None:
    with pytest.raises(SchemaProblem) as raised:
        TableSchema.of(documents(schema, partition_by, sort_by))
    assert str(raised.value).startswith("table with id 7, schema version 3: ")
    assert said in str(raised.value)


def test_problems_name_the_table_by_name_if_given() -> None:
    with pytest.raises(SchemaProblem, match=r"^table sales.orders, schema version 3: "):
        TableSchema.of(documents({}), table="sales.orders")


def test_bucket_fields_read_back_with_their_number() -> None:
    partition_by = [{"source-id": 1, "field-id": 1000, "transform": "bucket[16]", "name": "id_bucket_16"}]
    (field,) = TableSchema.of(documents(struct(ID), partition_by)).partition.fields
    assert field.transform == BucketTransform(16)
