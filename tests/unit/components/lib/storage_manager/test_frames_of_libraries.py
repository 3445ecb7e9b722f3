"""Frames of pandas and Polars, with the types that they have and Arrow does not have in the same way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.lib.lake.schema.table_definition import TableDefinition
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.schema.type_syntax import parse_column
from components.lib.storage_manager.coercion import coerce
from components.lib.storage_manager.errors import RowsRefused
from components.lib.storage_manager.frames import from_frame

COLUMNS = (
    "id:long!", "number:int", "flag:boolean", "ratio:double", "name:string", "kind:string", "price:decimal(9,2)",
    "local:timestamp", "at:timestamptz", "day:date", "clock:time", "scores:list<long>", "place:struct<x:long,y:string>",
    "raw:binary",
)  # fmt: skip
AT = datetime(2026, 11, 18, 9, 30, 1, 123456)
ROW: dict[str, Any] = {
    "id": 1, "number": 7, "flag": True, "ratio": 1.5, "name": "ä", "kind": "x", "price": Decimal("1.25"), "local": AT,
    "at": AT.replace(tzinfo=UTC), "day": date(2026, 11, 18), "clock": time(9, 30), "scores": [1, 2],
    "place": {"x": 1, "y": "b"}, "raw": b"q",
}  # fmt: skip
EMPTY: dict[str, Any] = {**dict.fromkeys(ROW), "id": 2}


@pytest.fixture(scope="module")
def schema() -> TableSchema:
    return TableDefinition([parse_column(text) for text in COLUMNS], (), ()).schema()


def of_pandas() -> pandas.DataFrame:
    frame = pandas.DataFrame([ROW, EMPTY])
    frame["kind"] = frame["kind"].astype("category")
    frame["at"] = frame["at"].dt.tz_convert("Europe/Berlin")
    return frame


def of_polars() -> polars.DataFrame:
    kinds: dict[str, Any] = {"price": polars.Decimal(9, 2), "kind": polars.Categorical, "number": polars.Int8}
    return polars.DataFrame([ROW, EMPTY], schema_overrides=kinds)


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": of_pandas,
    "pandas, nullable types": lambda: of_pandas().convert_dtypes(),
    "pandas, index of gaps": lambda: of_pandas().set_axis([10, 5]),
    "pandas, named index": lambda: of_pandas().set_index("id"),
    "Polars": of_polars,
    "Polars, enumeration": lambda: of_polars().with_columns(
        polars.col("kind").cast(polars.String).cast(polars.Enum(["x", "y"]))
    ),
    "Polars, nanoseconds and a zone": lambda: of_polars().with_columns(
        polars.col("local").dt.cast_time_unit("ns"), polars.col("at").dt.convert_time_zone("Asia/Tokyo")
    ),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_has_the_rows_that_it_was_made_of(schema: TableSchema, kind: str) -> None:
    rows = coerce(from_frame(FRAMES[kind]()), schema).to_pylist()
    assert rows == [ROW, EMPTY]


def test_integers_with_nulls_of_a_file_that_pandas_wrote(schema: TableSchema, tmp_path: Path) -> None:
    of_pandas().to_parquet(tmp_path / "a.parquet")
    rows = pa.Table.from_batches(pq.ParquetFile(tmp_path / "a.parquet").iter_batches())
    assert coerce(rows, schema).column("number").to_pylist() == [7, None]


SMALL = ("id:long", "number:long")


@pytest.mark.parametrize("value", [1.5, 2.0**53, float("inf"), -(2.0**53)])
def test_a_double_that_is_no_integer_or_may_have_been_another_is_refused(value: float) -> None:
    schema = TableDefinition([parse_column(text) for text in SMALL], (), ()).schema()
    frame = pandas.DataFrame({"id": [1, 2], "number": [None, value]})
    with pytest.raises(RowsRefused, match="row 2, column 'number'"):
        coerce(from_frame(frame), schema)
    kept = pandas.DataFrame({"id": [1], "number": [2.0**53 - 1]})
    assert coerce(from_frame(kept), schema).to_pylist() == [{"id": 1, "number": 2**53 - 1}]


def test_doubles_of_others_are_not_taken_for_integers() -> None:
    schema = TableDefinition([parse_column(text) for text in SMALL], (), ()).schema()
    with pytest.raises(RowsRefused, match="is double where the table has int64"):
        coerce(pa.table({"id": [1], "number": [1.0]}), schema)


@pytest.mark.parametrize("series", [pandas.Series([1]), polars.Series([1])])
def test_a_series_is_refused_with_the_way_out(series: Any) -> None:
    with pytest.raises(TypeError, match="to_frame"):
        from_frame(series)
