from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

from components.lib.lake.iceberg import manifest_encoder as module
from components.lib.lake.iceberg.manifest_encoder import ManifestEntryFile, ManifestEntryWriter

PARTITION = StructType(
    NestedField(1000, "decimal", DecimalType(9, 2)),
    NestedField(1001, "uuid", UUIDType()),
    NestedField(1002, "date", DateType()),
    NestedField(1003, "fixed", FixedType(4)),
    NestedField(1004, "text", StringType()),
    NestedField(1005, "real", DoubleType()),
    NestedField(1006, "flag", BooleanType()),
    NestedField(1007, "at", TimestamptzType()),
)
SCHEMA = manifest_entry_schema_with_data_file(2, data_file_with_partition(PARTITION, 2))

LONG = st.integers(-(2**63), 2**63 - 1)
IDS = st.integers(1, 2**31 - 1)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def entries() -> st.SearchStrategy[ManifestEntry]:
    numbers, bounds = (
        maybe(st.dictionaries(IDS, LONG, max_size=6)),
        maybe(st.dictionaries(IDS, st.binary(), max_size=6)),
    )
    partition = st.builds(
        Record,
        maybe(st.decimals("-9999999.99", "9999999.99", places=2)),
        maybe(st.uuids()),
        maybe(st.integers(-100_000, 100_000)),
        maybe(st.binary(min_size=4, max_size=4)),
        maybe(st.text()),
        maybe(st.floats(allow_nan=False)),
        maybe(st.booleans()),
        maybe(LONG),
    )
    files = st.builds(
        DataFile.from_args,
        content=st.sampled_from(DataFileContent),
        file_path=st.text(),
        file_format=st.sampled_from([FileFormat.PARQUET, FileFormat.AVRO]),
        partition=partition,
        record_count=LONG,
        file_size_in_bytes=LONG,
        column_sizes=numbers,
        value_counts=numbers,
        null_value_counts=numbers,
        nan_value_counts=numbers,
        lower_bounds=bounds,
        upper_bounds=bounds,
        key_metadata=maybe(st.binary()),
        split_offsets=maybe(st.lists(LONG, max_size=4)),
        equality_ids=maybe(st.lists(IDS, max_size=4)),
        sort_order_id=maybe(IDS),
    )
    return st.builds(
        ManifestEntry.from_args,
        status=st.sampled_from(ManifestEntryStatus),
        snapshot_id=maybe(LONG),
        sequence_number=maybe(LONG),
        file_sequence_number=maybe(LONG),
        data_file=files,
    )


@settings(deadline=None, max_examples=300)
@given(entries())
def test_the_bytes_equal_those_of_pyiceberg(entry: ManifestEntry) -> None:
    expected = io.BytesIO()
    construct_writer(SCHEMA).write(BinaryEncoder(expected), entry)

    found: list[bytes] = []
    module._struct(SCHEMA.as_struct())(found, entry)

    assert b"".join(found) == expected.getvalue()


@pytest.mark.parametrize("block_bytes", [1, 1_000, 1 << 20])
def test_a_manifest_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    schema = Schema(NestedField(1, "region", LongType()), schema_id=0)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "region"))
    io_ = PyArrowFileIO()
    files = [
        DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"file:///lake/{number}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(number),
            record_count=number,
            file_size_in_bytes=100 * number,
            lower_bounds={1: b"\0" * 8},
        )
        for number in range(50)
    ]
    with ManifestEntryWriter(spec, schema, io_.new_output(str(tmp_path / "m.avro")), 7, "deflate") as writer:
        for file in files:
            entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=7, data_file=file)
            writer.add_entry(entry)
    manifest = writer.to_manifest_file()
    manifest.sequence_number = 3

    read = manifest.fetch_manifest_entry(io_)

    assert [entry.data_file.file_path for entry in read] == [file.file_path for file in files]
    assert [entry.data_file.partition for entry in read] == [file.partition for file in files]
    assert dict(read[9].data_file.lower_bounds) == {1: b"\0" * 8}
    assert manifest.added_files_count == 50
    assert manifest.manifest_length == (tmp_path / "m.avro").stat().st_size


def test_a_failed_write_does_not_complete_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.avro"
    file = ManifestEntryFile(
        PyArrowFileIO().new_output(str(path)), SCHEMA, "manifest_entry", metadata={"avro.codec": "null"}
    )
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        data_file=DataFile.from_args(
            content=DataFileContent.DATA,
            file_path="file:///one",
            file_format=FileFormat.PARQUET,
            partition=Record(Decimal(1), UUID(int=1), *[None] * 6),
            record_count=1,
            file_size_in_bytes=1,
        ),
    )

    def fail() -> None:
        with file as writing:
            writing.write_block([entry])
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        fail()

    assert b"file:///one" not in path.read_bytes()
