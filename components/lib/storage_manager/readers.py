"""Readers of Parquet, CSV and JSON files: batches of rows with the types of the table they are inserted into.

Parquet has types of its own, which must match. The text of CSV and JSON is read by the table's types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from pyiceberg.types import ListType, MapType, StructType

from components.lib.lake.files.footers import BadFooter, read_arrow_schema, read_ending
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.storage_manager.decimals import with_decimals
from components.lib.storage_manager.errors import InsertError, RowsRefused
from components.lib.storage_manager.json_rows import read_json
from components.lib.storage_manager.uuids import uuid_columns, with_uuids

Format: TypeAlias = Literal["parquet", "csv", "json"]
FORMATS: tuple[str, ...] = get_args(Format)

_EXTENSIONS: dict[str, Format] = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip
_BLOCK = 8 << 20  # bytes of CSV at a time
_LONGEST = 256 << 20  # bytes of a line of JSON
_CSV_PLACE = re.compile(
    r"(?:In CSV column #(?P<column>\d+): )?(?:CSV parse error: )?Row #(?P<row>\d+): (?P<why>.*)", re.DOTALL
)


class Unreadable(InsertError):
    """The file does not have the expected format."""


@dataclass(frozen=True)
class RowSource:
    """An open file. ``position`` returns how many of ``size`` bytes have been read, for a progress bar."""

    batches: Iterator[pa.Table]
    position: Callable[[], int]
    size: int | None


def format_of(path: str) -> Format:
    """By the name's extension."""
    found = _EXTENSIONS.get(Path(path).suffix.lower())
    if found is None:
        known = ", ".join(_EXTENSIONS)
        raise Unreadable(
            f"{path}: the format is not known from the name (known: {known}): give it with --format, in Python with "
            "format="
        )
    return found


def open_source(
    file: IO[bytes], size: int | None, kind: Format, schema: TableSchema, *, fill_missing: bool
) -> RowSource:
    """``file`` must be seekable for Parquet."""
    if kind == "parquet":
        return _parquet(file, size)
    counted = CountedFile(file)
    if kind == "csv":
        return RowSource(_csv(counted, schema), counted.tell_read, size)
    return RowSource(read_json(counted.lines(), schema, fill_missing=fill_missing), counted.tell_read, size)


class CountedFile:
    """Counts the bytes that are read, from a pipe as well."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._read += len(data)
        return data

    def lines(self) -> Iterator[bytes]:
        """Raises `Unreadable` if a line is longer than `_LONGEST`: a file without line ends would fill the memory."""
        for number in count(1):
            line = self._file.readline(_LONGEST + 1)
            if not line:
                return
            if len(line) > _LONGEST:
                raise Unreadable(f"line {number} has more than {_LONGEST:,} bytes: is it a file of JSON lines?")
            self._read += len(line)
            yield line

    def tell_read(self) -> int:
        return self._read

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """The file is closed by its opener."""


def _parquet(file: IO[bytes], size: int | None) -> RowSource:
    """Reads the footer in a child process first, because a damaged one can abort Arrow's process."""
    try:
        read_arrow_schema(read_ending(file))
        source = pq.ParquetFile(file)
    except (pa.ArrowException, BadFooter, OSError, ValueError) as error:
        raise Unreadable(f"not a Parquet file: {error}") from error
    total = source.metadata.num_rows
    done = 0

    def batches() -> Iterator[pa.Table]:
        nonlocal done
        try:
            for batch in source.iter_batches():
                yield pa.Table.from_batches([batch])
                done += batch.num_rows
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise Unreadable(f"a damaged Parquet file: {error}") from error

    return RowSource(batches(), lambda: done * (size or 0) // max(total, 1), size)


def _csv(file: CountedFile, schema: TableSchema) -> Iterator[pa.Table]:
    types: dict[str, pa.DataType] = {}
    uuids = uuid_columns(schema)
    decimals = {field.name: field.type for field in schema.arrow() if pa.types.is_decimal(field.type)}
    for field, arrow in zip(schema.iceberg.fields, schema.arrow(), strict=True):
        if isinstance(field.field_type, StructType | ListType | MapType):
            raise RowsRefused("is nested, which CSV can't hold: use JSON lines or Parquet", column=field.name)
        is_text = field.name in uuids or field.name in decimals
        types[field.name] = pa.string() if is_text else arrow.type
    names: list[str] = []
    try:
        reader = csv.open_csv(
            file,
            read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK),  # threads lose count of rows
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        names = reader.schema.names
        row = 1
        for batch in reader:
            table = pa.Table.from_batches([batch])
            for name in uuids:
                if name in names:
                    table = with_uuids(table, name, row)
            for name, kind in decimals.items():
                if name in names:
                    table = with_decimals(table, name, kind, row)
            yield table
            row += table.num_rows
    except pa.ArrowInvalid as error:
        raise _csv_problem(str(error), names or list(types)) from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"not a CSV file: the name of a column is not UTF-8: {error.object[:40]!r}") from error


def _csv_problem(text: str, names: Sequence[str]) -> InsertError:
    found = _CSV_PLACE.match(text)
    if found is None:
        return Unreadable(f"not a CSV file: {text}")
    column = None if found["column"] is None else int(found["column"])
    name = names[column] if column is not None and column < len(names) else None
    return RowsRefused(found["why"], row=int(found["row"]) - 1, column=name)  # the header is Arrow's first row
