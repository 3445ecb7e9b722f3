"""Readers that leave out the rows that don't fit the table. Slower than `readers`, which refuse a file at its first."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as csv

from components.lib.lake.schema.table_schema import TableSchema
from components.lib.storage_manager.coercion import coerce
from components.lib.storage_manager.json_rows import line_chunks, read_json
from components.lib.storage_manager.readers import CountedFile, Format, Unreadable, open_source
from components.lib.storage_manager.rejects import OnReject, Reject, fitting

_BLOCK = 8 << 20  # bytes of CSV at a time


def read_fitting(
    file: IO[bytes], size: int | None, kind: Format, schema: TableSchema, reject: OnReject, *, fill_missing: bool
) -> Iterator[pa.Table]:
    """Yields the rows that fit; `reject` is called for the others before the next batch is yielded."""
    if kind == "json":
        return _json(file, schema, reject, fill_missing)
    if kind == "csv":
        return _csv(file, schema, reject, fill_missing)
    source = open_source(file, size, kind, schema, fill_missing=fill_missing)
    return _tables(source.batches, schema, reject, fill_missing)


def _tables(
    batches: Iterable[pa.Table], schema: TableSchema, reject: OnReject, fill_missing: bool
) -> Iterator[pa.Table]:
    first = 1
    for batch in batches:

        def convert(low: int, high: int, batch: pa.Table = batch) -> pa.Table:
            return coerce(batch.slice(low, high - low), schema, fill_missing=fill_missing)

        def values(index: int, batch: pa.Table = batch) -> Any:
            return batch.slice(index, 1).to_pylist()[0]

        def number(index: int, first: int = first) -> int:
            return first + index

        yield from fitting(batch.num_rows, convert, values, number, reject)
        first += batch.num_rows


def _json(file: IO[bytes], schema: TableSchema, reject: OnReject, fill_missing: bool) -> Iterator[pa.Table]:
    first = 1
    for lines in line_chunks(CountedFile(file).lines()):

        def convert(low: int, high: int, lines: list[bytes] = lines) -> pa.Table:
            (rows,) = read_json(lines[low:high], schema, fill_missing=fill_missing)
            return coerce(rows, schema, fill_missing=fill_missing)

        def values(index: int, lines: list[bytes] = lines) -> Any:
            return lines[index].decode(errors="replace").strip()

        def number(index: int, first: int = first) -> int:
            return first + index

        yield from fitting(len(lines), convert, values, number, reject)
        first += len(lines)


def _csv(file: IO[bytes], schema: TableSchema, reject: OnReject, fill_missing: bool) -> Iterator[pa.Table]:
    """Reads text, and converts ranges of it with the CSV reader itself: the same values fit as without rejects."""
    malformed: list[int] = []  # numbers of rows, the header not counted

    def skip(row: csv.InvalidRow) -> str:
        malformed.append(row.number)
        why = f"has {row.actual_columns} fields where the header has {row.expected_columns}"
        reject(Reject(row.number, None, why, row.text))
        return "skip"

    def number(index: int) -> int:
        for bad in malformed:
            if bad <= index:
                index += 1
        return index

    try:
        names = _header(file)
        reader = csv.open_csv(
            file,
            read_options=csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=names),
            parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        first = 1
        for batch in reader:
            texts = pa.Table.from_batches([batch])

            def convert(low: int, high: int, texts: pa.Table = texts) -> pa.Table:
                written = io.BytesIO()
                csv.write_csv(texts.slice(low, high - low), written, csv.WriteOptions(quoting_style="needed"))
                written.seek(0)
                source = open_source(written, None, "csv", schema, fill_missing=fill_missing)
                return coerce(pa.concat_tables(source.batches), schema, fill_missing=fill_missing)

            def values(index: int, texts: pa.Table = texts) -> Any:
                return texts.slice(index, 1).to_pylist()[0]

            def numbered(index: int, first: int = first) -> int:
                return number(first + index)

            yield from fitting(texts.num_rows, convert, values, numbered, reject)
            first += texts.num_rows
    except pa.ArrowInvalid as error:
        raise Unreadable(f"not a CSV file: {error}") from error


def _header(file: IO[bytes]) -> list[str]:
    """Reads the first line, which has no line ends inside names."""
    try:
        return list(csv.read_csv(io.BytesIO(file.readline())).column_names)
    except pa.ArrowInvalid as error:
        raise Unreadable(f"not a CSV file: {error}") from error
