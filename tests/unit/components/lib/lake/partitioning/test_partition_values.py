"""Partition paths in both directions, and the split of rows compared with PyIceberg's own transforms."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, write_manifest
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, LongType, NestedField, StringType, StructType

from components.lib.lake.partitioning.partition_values import NULL, Partitioning, PartitionProblem, split
from registry.validation import MAX_PATH_BYTES
from tests.unit.components.lib.lake.schemas import PRIMITIVES, of_one, partitioned

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=100)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": INT32,
    "long": INT64,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "decimal": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda unscaled: Decimal(f"{unscaled}E-3")),
    "date": INT32,
    "time": st.integers(0, 86_400_000_000 - 1),
    "timestamp": INT64,
    "timestamptz": INT64,
    "string": TEXT,
    "uuid": st.uuids(),
    "fixed": st.binary(min_size=5, max_size=5),
    "binary": st.binary(max_size=40),
}
"""Values in the form of a manifest."""

TRANSFORMS = {
    "year": ("date", "timestamp", "timestamptz"),
    "month": ("date", "timestamp", "timestamptz"),
    "day": ("date", "timestamp", "timestamptz"),
    "hour": ("timestamp", "timestamptz"),
    "bucket[16]": ("int", "long", "decimal", "date", "time", "timestamp", "timestamptz", "string", "uuid", "fixed",
                   "binary"),
    "truncate[3]": ("int", "long", "decimal", "string", "binary"),
    "identity": tuple(PRIMITIVES),
    "void": ("long", "string"),
}  # fmt: skip
FEW = settings(max_examples=25, deadline=None)
CASES = [(transform, kind) for transform, kinds in TRANSFORMS.items() for kind in kinds]


@pytest.mark.parametrize("kind", PRIMITIVES)
@FEW
@given(data=st.data())
def test_any_value_survives_the_path(kind: str, data: st.DataObject) -> None:
    partitioning = Partitioning(of_one(PRIMITIVES[kind]))
    value = data.draw(st.none() | VALUES[kind])
    path = partitioning.path([value])
    assert "/" not in path
    assert path.isascii()
    read = partitioning.values(path)
    assert repr(read) == repr(Record(value))  # tells 0.0 from -0.0
    assert type(read[0]) is type(value)


@FEW
@given(left=TEXT, right=TEXT)
@example(left=NULL, right="")
@example(left="%5F_HIVE_DEFAULT_PARTITION__", right=NULL)
@example(left="a/b=c", right="\0 +%2F")
def test_no_two_texts_share_a_path(left: str, right: str) -> None:
    partitioning = Partitioning(of_one(StringType()))
    assert (partitioning.path([left]) == partitioning.path([right])) == (left == right)
    assert partitioning.path([left]) != partitioning.path([None])


@pytest.mark.parametrize("transform", ["year", "month", "day", "hour"])
@FEW
@given(ordinal=INT32)
def test_times_are_readable_in_any_year(transform: str, ordinal: int) -> None:
    partitioning = Partitioning(of_one(PRIMITIVES["timestamp"], transform))
    assert partitioning.values(partitioning.path([ordinal])) == Record(ordinal)


@pytest.mark.parametrize(
    ("kind", "transform", "value", "path"),
    [
        ("timestamp", "year", 54, "2024"),
        ("timestamp", "month", 54 * 12 + 4, "2024-05"),
        ("timestamp", "day", 19844, "2024-05-01"),
        ("timestamp", "hour", 19844 * 24 + 7, "2024-05-01-07"),
        ("timestamp", "day", -1, "1969-12-31"),
        ("date", "identity", 19844, "2024-05-01"),
        ("date", "identity", 2932897, "10000-01-01"),
        ("timestamptz", "identity", -1, "1969-12-31T23%3A59%3A59.999999%2B00%3A00"),
        ("time", "identity", 1, "00%3A00%3A00.000001"),
        ("decimal", "identity", Decimal("-1.500"), "-1.500"),
        ("boolean", "identity", False, "false"),
        ("binary", "identity", b"\x00\xff", "00ff"),
        ("binary", "identity", b"", ""),
        ("string", "identity", "a b/ü=%", "a%20b%2F%C3%BC%3D%25"),
        ("uuid", "identity", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("double", "identity", float("-inf"), "-inf"),
        ("long", "identity", None, NULL),
    ],
)
def test_paths_of_values(kind: str, transform: str, value: object, path: str) -> None:
    partitioning = Partitioning(of_one(PRIMITIVES[kind], transform))
    assert partitioning.path([value]) == f"p0={path}"
    assert partitioning.values(f"p0={path}") == Record(value)


def test_nan_is_one_partition() -> None:
    partitioning = Partitioning(of_one(PRIMITIVES["double"]))
    assert partitioning.path([float("nan")]) == "p0=nan"
    assert str(partitioning.values("p0=nan")[0]) == "nan"


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("long", ""),
        ("long", "p0=1/p0=2"),
        ("long", "p1=1"),
        ("long", "p0=one"),
        ("long", "p0=01"),
        ("long", "p0= 1"),
        ("boolean", "p0=True"),
        ("decimal", "p0=1.5"),
        ("decimal", "p0=1.5001"),
        ("decimal", "p0=NaN"),
        ("date", "p0=2024-5-1"),
        ("date", "p0=2024-02-30"),
        ("string", "p0=a b"),
        ("string", "p0=%ff"),
        ("time", "p0=1"),
        ("uuid", "p0=1"),
    ],
)
def test_any_other_spelling_is_refused(kind: str, path: str) -> None:
    with pytest.raises(PartitionProblem, match="partition path"):
        Partitioning(of_one(PRIMITIVES[kind])).values(path)


def test_a_path_too_long_for_the_registry_is_refused_with_a_remedy() -> None:
    with pytest.raises(PartitionProblem, match="truncate"):
        Partitioning(of_one(StringType())).path(["ü" * MAX_PATH_BYTES])


def test_several_partition_fields_and_none() -> None:
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()))
    both = Partitioning(partitioned(schema, (2, "identity"), (1, "bucket[4]")))
    assert both.path(("x/y", 3)) == "p0=x%2Fy/p1=3"
    assert both.values("p0=x%2Fy/p1=3") == Record("x/y", 3)
    none = Partitioning(partitioned(schema))
    assert (none.path(()), none.values("")) == ("", Record())
    with pytest.raises(PartitionProblem, match="1 partition values, where the table has 2"):
        both.path(("x",))


@pytest.mark.parametrize(("transform", "kind"), CASES)
@FEW
@given(data=st.data())
def test_rows_are_split_as_pyiceberg_would(transform: str, kind: str, data: st.DataObject) -> None:
    source = PRIMITIVES[kind]
    schema = of_one(source, transform)
    values = data.draw(st.lists(st.none() | _for_python(kind), max_size=20))
    table = pa.table({"c": _array(values, schema.arrow().field("c").type)})

    parts = split(table, schema)

    partitioning = Partitioning(schema)
    expected: dict[str, list[object]] = {}
    for value in values:
        path = partitioning.path([parse_transform(transform).transform(source)(value)])
        expected.setdefault(path, []).append(value)
    assert {path: _values(part) for path, part in parts} == expected
    assert [path for path, _ in parts] == list(expected)


def _for_python(kind: str) -> st.SearchStrategy[Any]:
    """Limited to the years of Python's calendar, and so of PyIceberg's transforms."""
    days = st.integers(-719_162, 2_932_896)
    if kind == "date":
        return days
    if kind in ("timestamp", "timestamptz"):
        return st.tuples(days, VALUES["time"]).map(lambda parts: parts[0] * 86_400_000_000 + parts[1])
    if kind in ("int", "long"):
        return VALUES[kind].filter(lambda value: value > -(2**31) + 3)  # below, Java wraps around and PyIceberg doesn't
    return VALUES[kind]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).view(kind)
    if pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    if kind == pa.uuid():
        raw = [None if value is None else value.bytes for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(raw, pa.binary(16)))
    return pa.array(values, kind)


def _values(part: pa.Table) -> list[object]:
    column = part.column("c")
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    values: list[object] = column.to_pylist()
    return values


@pytest.mark.parametrize("transform", ["year", "month", "day", "hour"])
@FEW
@given(values=st.lists(INT64, min_size=1, max_size=5))
def test_years_beyond_pythons_calendar_are_split(transform: str, values: list[int]) -> None:
    schema = of_one(PRIMITIVES["timestamp"], transform)
    table = pa.table({"c": pa.array(values, pa.int64()).view(pa.timestamp("us"))})
    parts = split(table, schema)
    assert sum(part.num_rows for _, part in parts) == len(values)
    days = {"day": 86_400_000_000, "hour": 3_600_000_000}
    if transform in days:
        ordinals = dict.fromkeys(value // days[transform] for value in values)
        assert [path for path, _ in parts] == [Partitioning(schema).path([ordinal]) for ordinal in ordinals]


@FEW
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=50), cuts=st.integers(1, 9)
)
def test_rows_keep_their_order_whatever_the_chunks(rows: list[tuple[int, str]], cuts: int) -> None:
    fields = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", StringType()), NestedField(3, "n", LongType()))
    schema = partitioned(fields, (1, "identity"), (2, "identity"))
    whole = [(a, b, number) for number, (a, b) in enumerate(rows)]
    batches = [
        pa.table(list(zip(*whole[start : start + cuts], strict=True)), schema=_plain(schema.arrow()))
        for start in range(0, len(whole), cuts)
    ]
    parts = split(pa.concat_tables(batches) if batches else _plain(schema.arrow()).empty_table(), schema)
    got = [tuple(row.values()) for _, part in parts for row in part.to_pylist()]
    first = {row[:2]: place for place, row in reversed(list(enumerate(whole)))}
    assert got == sorted(whole, key=lambda row: (first[row[:2]], row[2]))
    assert len({path for path, _ in parts}) == len(parts) == len(first)


def _plain(schema: pa.Schema) -> pa.Schema:
    return schema.remove_metadata()


def test_adjacent_rows_are_not_copied() -> None:
    schema = of_one(LongType())
    table = pa.table({"c": pa.array([7, 7, 3, 3, 3], pa.int64())})
    parts = split(table, schema)
    assert [(path, part.num_rows) for path, part in parts] == [("p0=7", 2), ("p0=3", 3)]
    address = table.column("c").chunk(0).buffers()[1].address
    assert all(part.column("c").chunk(0).buffers()[1].address == address for _, part in parts)


def test_all_nans_are_one_partition_and_zeros_are_two() -> None:
    other_nan = pa.array([0x7FF8000000000001], pa.int64()).view(pa.float64())[0].as_py()
    table = pa.table({"c": pa.array([float("nan"), 1.0, other_nan, 0.0, -0.0], pa.float64())})
    parts = split(table, of_one(PRIMITIVES["double"]))
    assert [(path, part.num_rows) for path, part in parts] == [
        ("p0=nan", 2), ("p0=1.0", 1), ("p0=0.0", 1), ("p0=-0.0", 1)
    ]  # fmt: skip


def test_a_source_column_inside_a_struct() -> None:
    place = StructType(NestedField(2, "city", StringType(), required=True))
    schema = partitioned(Schema(NestedField(1, "place", place)), (2, "identity"))
    table = pa.table(
        {"place": pa.array([{"city": "Rome"}, None, {"city": "Rome"}], schema.arrow().field("place").type)}
    )
    assert [(path, part.num_rows) for path, part in split(table, schema)] == [("p0=Rome", 2), (f"p0={NULL}", 1)]


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_arrow_type_of_text(kind: pa.DataType) -> None:
    table = pa.table({"c": pa.array(["a", "b", "a"]).cast(kind)})
    assert [path for path, _ in split(table, of_one(StringType(), "bucket[1000]"))] == [
        f"p0={parse_transform('bucket[1000]').transform(StringType())(text)}" for text in "ab"
    ]


def test_buckets_equal_those_of_the_specification() -> None:
    """Iceberg's specification, appendix B, gives these hashes."""
    buckets = 2**31 - 1
    for kind, value, expected in _HASHES:
        table = pa.table({"c": _array([value], of_one(kind).arrow().field("c").type)})
        ((path, _),) = split(table, of_one(kind, f"bucket[{buckets}]"))
        assert path == f"p0={(expected & 0x7FFFFFFF) % buckets}"


_HASHES: list[tuple[IcebergType, object, int]] = [
    (PRIMITIVES["int"], 34, 2017239379),
    (PRIMITIVES["long"], 34, 2017239379),
    (PRIMITIVES["date"], (date(2017, 11, 16) - date(1970, 1, 1)).days, -653330422),
    (PRIMITIVES["time"], 81_068_000_000, -662762989),
    (PRIMITIVES["timestamp"], 1_510_871_468_000_000, -2047944441),
    (PRIMITIVES["string"], "iceberg", 1210000089),
    (PRIMITIVES["uuid"], UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"), 1488055340),
    (PRIMITIVES["binary"], bytes([0, 1, 2, 3]), -188683207),
]


@pytest.mark.parametrize(("transform", "kind"), [case for case in CASES if case != ("identity", "double")])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_values_read_from_a_manifest_have_the_same_path(transform: str, kind: str, data: st.DataObject) -> None:
    schema = of_one(PRIMITIVES[kind], transform)
    partitioning = Partitioning(schema)
    function = parse_transform(transform).transform(PRIMITIVES[kind])
    values = data.draw(st.lists(st.none() | _for_python(kind), min_size=1, max_size=20))
    paths = [partitioning.path([function(value)]) for value in values]
    with TemporaryDirectory() as directory:
        io = PyArrowFileIO()
        output = io.new_output(f"file://{directory}/manifest.avro")
        with write_manifest(2, schema.partition, schema.iceberg, output, 1, "null") as writer:
            for path in paths:
                writer.add(_entry(partitioning.values(path)))
        entries = writer.to_manifest_file().fetch_manifest_entry(io)
    assert [partitioning.path(entry.data_file.partition) for entry in entries] == paths


def _entry(partition: Record) -> ManifestEntry:
    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path="file:///f", file_format=FileFormat.PARQUET, record_count=1,
        file_size_in_bytes=1, partition=partition,
    )  # fmt: skip
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=1, sequence_number=1, file_sequence_number=1, data_file=file
    )
