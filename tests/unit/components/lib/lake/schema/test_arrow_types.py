"""Columns taken from an Arrow schema or a Parquet file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.lib.lake.files.footers import read_columns
from components.lib.lake.schema.arrow_types import columns_of
from components.lib.lake.schema.table_definition import TableDefinition
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.schema.type_syntax import SyntaxProblem, show_field
from tests.unit.components.lib.lake.schema.test_table_schema import EVERY_TYPE
from tests.unit.components.lib.lake.schemas import NESTED, partitioned


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (pa.int8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.float16(), "float"),
        (pa.date64(), "date"),
        (pa.time32("s"), "time"),
        (pa.timestamp("ns"), "timestamp"),
        (pa.timestamp("ms", "Europe/Rome"), "timestamptz"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.decimal32(9, 2), "decimal(9,2)"),
        (pa.list_(pa.int64(), 3), "list<long>"),
        (pa.list_(pa.field("element", pa.int64(), nullable=False)), "list<long!>"),
        (pa.map_(pa.string(), pa.int32()), "map<string, int>"),
        (pa.struct([pa.field("a", pa.bool_(), nullable=False)]), "struct<a: boolean!>"),
    ],
)
def test_types_of_arrow(kind: pa.DataType, shown: str) -> None:
    (column,) = columns_of(pa.schema([pa.field("c", kind)]))
    assert show_field(column) == f"c: {shown}"


@pytest.mark.parametrize("kind", [pa.uint64(), pa.null(), pa.duration("s"), pa.decimal256(50, 2)])
def test_types_without_a_counterpart_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(SyntaxProblem, match=r"column s\.c: Arrow's .* has no counterpart"):
        columns_of(pa.schema([pa.field("s", pa.struct([("c", kind)]))]))


@pytest.mark.parametrize("schema", [partitioned(EVERY_TYPE), partitioned(NESTED)], ids=["primitives", "nested"])
def test_our_own_file_gives_back_its_tables_columns(schema: TableSchema, tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"
    pq.write_table(schema.arrow().empty_table(), file)
    again = TableDefinition(read_columns(file)).schema()
    assert [show_field(column) for column in again.iceberg.fields] == [
        show_field(column) for column in schema.iceberg.fields
    ]


def test_other_files_are_refused_as_parquet(tmp_path: Path) -> None:
    (tmp_path / "file.parquet").write_text("hello")
    with pytest.raises(SyntaxProblem, match="can't be read as Parquet"):
        read_columns(tmp_path / "file.parquet")
    with pytest.raises(SyntaxProblem, match="can't be read as Parquet"):
        read_columns(tmp_path / "gone.parquet")
