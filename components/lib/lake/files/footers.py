"""Footers of Parquet files that are not trusted, read by Arrow in a child process.

Arrow calls `std::terminate` at some damaged footers, and a process that is gone can't tell which file it was. So no
footer is read by the process that wants to know what is in it, except one that the same process has just written.
A checksum does not make a file trusted: it says that the bytes are those that were registered, not that they are sane.

The functions without an underscore that take bytes run in the child.
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

_LIMIT_S = 60.0  # of a footer: the largest take a second
_LARGEST = 1 << 28  # bytes; a footer of a million column chunks has half of that
_HERE = __name__


class BadFooter(AsthaError):
    """The message says what is wrong, after a file's name and a colon."""


class FooterStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """As a manifest of Iceberg's has them, by field id."""

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


def read_statistics(ending: bytes, schema: Schema, children: ChildPool | None = None) -> FooterStatistics:
    """Of a file whose last bytes are these, at least its footer. BadFooter if it has none that can be read."""
    call = msgspec.msgpack.encode(_StatisticsCall(_alone(ending), schema.model_dump_json()))
    return msgspec.msgpack.decode(_asked("iceberg_statistics", call, children), type=FooterStatistics)


def read_arrow_schema(ending: bytes, children: ChildPool | None = None) -> pa.Schema:
    """Likewise."""
    answer = _asked("arrow_schema", _alone(ending), children)
    try:
        return pa.ipc.read_schema(pa.BufferReader(answer))
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
    if length > _LARGEST:
        raise BadFooter(f"its footer is said to have {length:,} bytes: {_LARGEST:,} are the most that is read")
    return length + TAIL


def read_ending(stream: IO[bytes]) -> bytes:
    """As much of the end of a file as holds its footer; the file is left at its beginning."""
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
    _look_at(found.metadata)
    return bytes(found.schema_arrow.serialize())


def _look_at(footer: pq.FileMetaData) -> None:
    """Everything in it that a reader may look at later, in its own process."""
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
            f"column {without[0]} has no field id, so that engines could take it for another: insert the file with "
            "`astha insert`, which writes them"
        )


def _alone(ending: bytes) -> bytes:
    """A file of nothing but the footer."""
    length = ending_length(ending)
    if length > len(ending):
        raise BadFooter(f"its footer is said to have {length - TAIL:,} bytes, and is cut off")
    return MAGIC + ending[-length:]


def _asked(function: str, argument: bytes, children: ChildPool | None) -> bytes:
    try:
        return (children or shared_child_pool()).call(f"{_HERE}:{function}", argument, limit_s=_LIMIT_S)
    except ChildRaised as error:
        raise BadFooter(f"{error.kind}: {error}" if error.kind == "KeyError" else str(error)) from error
    except ChildFailed as error:
        raise BadFooter(f"it is damaged, and ends the process that reads its footer: {error}") from error
