"""Footers of untrusted Parquet files, read by Arrow in a child process (decision 0019).

Arrow calls `std::terminate` at some damaged footers, and a dead process cannot name the file. So a process reads only
the footers that it has just written itself. A checksum does not make a file trusted: it says that the bytes are those
that were registered, not that they are valid.

`iceberg_statistics` and `arrow_schema` run in the child.
"""

from __future__ import annotations

from os import SEEK_END
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from astha.errors import AsthaError
from components.lib.lake.isolation import ChildFailed, ChildPool, ChildRaised, shared_child_pool
from components.lib.lake.schema.arrow_types import columns_of
from components.lib.lake.schema.type_syntax import SyntaxProblem
from components.lib.parquet_tail import MAGIC, TAIL, footer_length

_LIMIT_S = 60.0  # per footer; the largest take a second
_MAX_BYTES = 1 << 28  # a footer with a million column chunks has half of that
_HERE = __name__


class BadFooter(AsthaError):
    """The message is meant to follow the file's name and a colon."""


class FooterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics by field id, in the form of an Iceberg manifest."""

    record_count: int
    column_sizes: dict[int, int] = {}
    value_counts: dict[int, int] = {}
    null_value_counts: dict[int, int] = {}
    nan_value_counts: dict[int, int] = {}
    lower_bounds: dict[int, bytes] = {}
    upper_bounds: dict[int, bytes] = {}
    split_offsets: list[int] | None = None


class _StatisticsCall(msgspec.Struct, frozen=True):
    footer: bytes
    schema: str


def read_statistics(ending: bytes, schema: Schema, pool: ChildPool | None = None) -> FooterStatistics:
    """Reads the statistics of a file from its last bytes, which must include the footer. Raises `BadFooter`."""
    call = msgspec.msgpack.encode(_StatisticsCall(_footer_file(ending), schema.model_dump_json()))
    return msgspec.msgpack.decode(_call_child("iceberg_statistics", call, pool), type=FooterStatistics)


def read_arrow_schema(ending: bytes, pool: ChildPool | None = None) -> pa.Schema:
    """Reads the Arrow schema of a file, like `read_statistics`."""
    response = _call_child("arrow_schema", _footer_file(ending), pool)
    try:
        return pa.ipc.read_schema(pa.BufferReader(response))
    except (pa.ArrowException, OSError) as error:
        raise BadFooter(f"its schema can't be read: {error}") from error


def read_columns(file: Path) -> list[NestedField]:
    """Returns the columns of a Parquet file, without ids. Raises `SyntaxProblem` if the file cannot be read."""
    try:
        with file.open("rb") as stream:
            return columns_of(read_arrow_schema(read_ending(stream)))
    except (OSError, BadFooter) as error:
        raise SyntaxProblem(f"{file} can't be read as Parquet: {error}") from error


def ending_length(ending: bytes) -> int:
    """Returns the length of the footer with its tail. Raises `BadFooter` if the bytes are not a Parquet file's end."""
    try:
        length = footer_length(ending)
    except ValueError as error:
        raise BadFooter(f"it is {error}") from error
    if length > _MAX_BYTES:
        raise BadFooter(f"its footer claims {length:,} bytes: at most {_MAX_BYTES:,} are read")
    return length + TAIL


def read_ending(stream: IO[bytes]) -> bytes:
    """Returns the end of a file, from its footer on; leaves the file at its beginning."""
    size = stream.seek(0, SEEK_END)
    stream.seek(max(0, size - TAIL))
    needed = ending_length(stream.read(TAIL))
    stream.seek(max(0, size - needed))
    ending = stream.read(needed)
    stream.seek(0)
    return ending


def iceberg_statistics(argument: bytes) -> bytes:
    call = msgspec.msgpack.decode(argument, type=_StatisticsCall)
    schema = Schema.model_validate_json(call.schema)
    footer = pq.read_metadata(pa.BufferReader(call.footer))
    _require_field_ids(footer)
    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, {}),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    ).to_serialized_dict()
    return msgspec.msgpack.encode(found)


def arrow_schema(footer: bytes) -> bytes:
    found = pq.ParquetFile(pa.BufferReader(footer))
    _read_everything(found.metadata)
    return bytes(found.schema_arrow.serialize())


def _read_everything(footer: pq.FileMetaData) -> None:
    """Reads every part that a later reader may read in its own process."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            if chunk.statistics is not None:
                chunk.statistics.to_dict()


def _require_field_ids(footer: pq.FileMetaData) -> None:
    arrow = footer.schema.to_arrow_schema()
    without = [field.name for field in arrow if not (field.metadata or {}).get(b"PARQUET:field_id")]
    if without:
        raise ValueError(
            f"column {without[0]} has no field id, so that engines could confuse it with another: insert the file with "
            "`astha insert`, which writes them"
        )


def _footer_file(ending: bytes) -> bytes:
    """Returns a Parquet file that consists of the footer only."""
    length = ending_length(ending)
    if length > len(ending):
        raise BadFooter(f"its footer claims {length - TAIL:,} bytes, and is cut off")
    return MAGIC + ending[-length:]


def _call_child(function: str, argument: bytes, pool: ChildPool | None) -> bytes:
    try:
        return (pool or shared_child_pool()).call(f"{_HERE}:{function}", argument, limit_s=_LIMIT_S)
    except ChildRaised as error:
        raise BadFooter(f"{error.kind}: {error}" if error.kind == "KeyError" else str(error)) from error
    except ChildFailed as error:
        raise BadFooter(f"it is damaged: reading its footer ends the process: {error}") from error
