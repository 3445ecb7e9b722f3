from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from components.lib.lake.engine_commits import CreateRequest, InvalidCommit
from tests.unit.components.lib.lake.engine_commits.requests import LOCATION, NOW, created

NESTED: dict[str, Any] = {
    "type": "struct",
    "schema-id": 4,
    "fields": [
        {
            "id": 10,
            "name": "place",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [
                    {"id": 14, "name": "city", "required": True, "type": "string"},
                    {
                        "id": 15,
                        "name": "codes",
                        "required": False,
                        "type": {"type": "list", "element-id": 16, "element": "int", "element-required": True},
                    },
                ],
            },
        },
        {
            "id": 11,
            "name": "tags",
            "required": False,
            "type": {
                "type": "map",
                "key-id": 17,
                "key": "string",
                "value-id": 18,
                "value": "long",
                "value-required": False,
            },
        },
        {"id": 5, "name": "id", "required": True, "type": "long"},
    ],
    "identifier-field-ids": [5],
}


def test_ids_are_assigned_as_icebergs_library_does() -> None:
    spec = {"spec-id": 3, "fields": [{"source-id": 14, "field-id": 77, "transform": "identity", "name": "city"}]}
    order = {"order-id": 9, "fields": [{"source-id": 5, "transform": "identity", "direction": "desc"}]}
    table = created(schema=NESTED, **{"partition-spec": spec, "write-order": order})
    theirs = new_table_metadata(
        Schema.model_validate(NESTED), PartitionSpec.model_validate(spec), UNSORTED_SORT_ORDER, LOCATION, {}
    )
    ours = Schema.model_validate(table.schema)
    assert ours.fields == theirs.schema().fields
    assert ours.identifier_field_ids == [3]
    assert table.spec["fields"] == [{"source-id": 4, "field-id": 1000, "transform": "identity", "name": "city"}]
    assert table.spec["fields"][0]["source-id"] == theirs.spec().fields[0].source_id
    assert (table.sort_order["order-id"], table.sort_order["fields"][0]["source-id"]) == (1, 3)
    assert table.last_column_id == theirs.last_column_id == 8


def test_defaults() -> None:
    table = created()
    assert (table.format_version, table.location, table.last_updated_ms) == (2, LOCATION, NOW)
    assert (table.spec["fields"], table.default_sort_order_id, table.current_snapshot_id) == ([], 0, None)
    assert table.properties == {"write.parquet.compression-codec": "zstd"}
    assert created().table_uuid != table.table_uuid


def test_the_format_version_is_no_property() -> None:
    table = created(properties={"format-version": "1", "owner": "sales"})
    assert table.format_version == 1
    assert "format-version" not in table.properties
    assert table.properties["owner"] == "sales"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"properties": {"format-version": "x"}}, "is not a number"),
        ({"properties": {"format-version": "7"}}, "Unsupported format version: v7"),
        ({"properties": {"commit.retry.num-retries": "-1"}}, "must have non negative integer value"),
        ({"partition-spec": {"fields": [{"source-id": 9, "transform": "day", "name": "d"}]}}, "Cannot find source"),
        ({"partition-spec": {"fields": 4}}, "not a list"),
        ({"schema": {"type": "struct", "fields": [{"name": "a"}]}}, "not a column"),
    ],
)
def test_an_invalid_request(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCommit, match=message):
        created(**more)


def test_a_request_without_schema() -> None:
    with pytest.raises(InvalidCommit, match="schema"):
        CreateRequest.parse(msgspec.json.encode({"name": "orders"}))
