"""Table definitions as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, LongType, NestedField, StringType

from components.lib.lake.schema.table_definition import TableDefinition, parse_definition, read_definition
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.schema.type_syntax import SyntaxProblem, parse_column
from tests.unit.components.lib.lake.schemas import NESTED

YAML = """
columns:
  id: long!
  price: decimal(9,2)
  ts: {type: timestamptz, required: true, doc: when it was sold}
  place: "struct<city: string!, zip: string>"
partition_by: [day(ts), "bucket(16, id)"]
sort_by: ts desc
compression: snappy
properties: {a: b, keep: 3, fast: true}
location: s3://lake/sales
"""


def test_a_complete_definition_file(tmp_path: Path) -> None:
    file = tmp_path / "sales.yaml"
    file.write_text(YAML)
    definition = read_definition(file)
    schema = definition.schema()
    assert (schema.version, schema.format, schema.compression) == (1, "parquet", "snappy")
    assert definition.properties == {"a": "b", "keep": "3", "fast": "true"}
    assert definition.location == "s3://lake/sales"
    assert schema.iceberg.find_field("price").field_type == DecimalType(9, 2)
    assert schema.iceberg.find_field("ts").doc == "when it was sold"
    assert [field.required for field in schema.iceberg.fields] == [True, False, True, False]
    assert [(field.source_id, str(field.transform), field.name) for field in schema.partition.fields] == [
        (3, "day", "ts_day"), (1, "bucket[16]", "id_bucket_16")
    ]  # fmt: skip
    assert [str(field) for field in schema.order.fields] == ["3 DESC NULLS LAST"]


@pytest.mark.parametrize(
    "columns",
    [
        '{"columns": {"id": "long!", "name": "string"}}',
        "columns: [id: long!, name: string]",
        "columns: ['id: long!', 'name:string']",
        "columns: [{name: id, type: long, required: true}, {name: name, type: string}]",
    ],
)
def test_columns_in_every_syntax(tmp_path: Path, columns: str) -> None:
    file = tmp_path / "table.json"
    file.write_text(columns)
    expected = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))
    assert read_definition(file).schema().iceberg == expected


@pytest.mark.parametrize("form", ["{schema}", '{{"columns": {schema}, "partition_by": ["id"]}}'])
def test_icebergs_own_schema_keeps_its_ids(tmp_path: Path, form: str) -> None:
    file = tmp_path / "schema.json"
    file.write_text(form.format(schema=NESTED.model_dump_json()))
    assert read_definition(file).schema().iceberg == NESTED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is a mapping"),
        ("columns: {}", "at least one column"),
        ("partition_by: [id]", "columns are missing"),
        ("colums: {id: long}", "'colums' is not a key of a definition"),
        ("columns: {id: long, id: int}", "line 1: 'id' appears twice"),
        ("columns: {id: lnog}", "column id: 'lnog': no type 'lnog': did you mean long?"),
        ("columns: {2024: long}", "column 2024: a name is a text: put it in quotes"),
        ("columns: {id: 5}", "column id: its type 5 is not a text"),
        ("columns: {id: {typ: long}}", "column id: write a type, or"),
        ("columns: {id: {type: long, required: maybe}}", "required is true or false"),
        ("columns: [[id, long]]", "write it as id: long!"),
        ("columns: {id: long}\nformat: 5", "format: 5 is not a text"),
        ("columns: {id: long}\npartition_by: {day: ts}", "partition_by is a list of texts"),
        ("columns: {id: long}\nproperties: [a]", "properties are a mapping"),
        ("columns: {id: long}\nproperties: {a: [1]}", "property a: [1] is not a text"),
        ('{"type": "struct", "fields": [{"id": 1, "name": "a", "type": "unknown"}]}', "needs Iceberg v3"),
        ("columns: {id: long", "line 1"),
    ],
)
def test_mistakes_in_a_file_name_it(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "table.yaml"
    file.write_text(text)
    with pytest.raises(SyntaxProblem) as raised:
        read_definition(file).schema()
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{file}: ") or "at least one column" in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SyntaxProblem, match=r"gone\.yaml: can't be read"):
        read_definition(tmp_path / "gone.yaml")


def test_a_definition_is_stored_and_read_back() -> None:
    definition = TableDefinition([parse_column("id: long!"), parse_column("ts: timestamptz")], ["day(ts)"], ["id"])
    schema = definition.schema()
    assert isinstance(schema, TableSchema)
    assert parse_definition({"columns": {"id": "long!", "ts": "timestamptz"}, "partition_by": "day(ts)",
                             "sort_by": ["id"]}).schema() == schema  # fmt: skip
