"""Turns records into rows, in a task: a record that is no row stops the micro-batch, or is skipped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa

from components.commands.topic_to_table.errors import BadRecord, UnsuitableTable
from components.commands.topic_to_table.json_columns import JsonColumns
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.storage_manager.coercion import coerce
from components.lib.storage_manager.errors import RowsRefused

Values: TypeAlias = Literal["json", "record"]

PLACE = ("partition", "offset")
FIELDS = ("key", "value", "offset", "partition", "timestamp", "headers")


class RowForm(Protocol):
    def rows(self, records: pa.Table) -> pa.Table:
        """Returns as many rows as there are records. Rows in `RowsRefused` count from 1."""
        ...


class JsonValues:
    def __init__(self, schema: TableSchema) -> None:
        self._columns = JsonColumns(schema)

    def rows(self, records: pa.Table) -> pa.Table:
        return self._columns.rows(records.column("value").combine_chunks())


class RecordFields:
    """Fills the columns that are named like a record's fields; the others are null."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._names = record_columns(schema)
        self._text = {field.name for field in schema.arrow() if _is_text(field.type)}

    def rows(self, records: pa.Table) -> pa.Table:
        columns = [self._column(records, name) for name in self._names]
        return coerce(pa.table(columns, names=self._names), self._schema, fill_missing=True)

    def _column(self, records: pa.Table, name: str) -> pa.ChunkedArray:
        column = records.column(name)
        if name not in self._text or not pa.types.is_binary(column.type):
            return column
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            row = next(row for row, value in enumerate(column.to_pylist(), 1) if value is not None and not _utf8(value))
            raise RowsRefused("is not UTF-8: use a column of type binary", row=row, column=name) from None


def row_form(schema: TableSchema, values: Values) -> RowForm:
    return JsonValues(schema) if values == "json" else RecordFields(schema)


def wanted_columns(schema: TableSchema, values: Values) -> tuple[str, ...]:
    """Returns the fields of records that are read besides `PLACE`. Raises `UnsuitableTable` if the table takes none."""
    if values == "json":
        return ("value",)
    return tuple(name for name in record_columns(schema) if name not in PLACE)


def record_columns(schema: TableSchema) -> list[str]:
    """Returns the table's columns that are named like a record's fields. Raises `UnsuitableTable` if there is none,
    or if the table requires another column.
    """
    fields = schema.iceberg.fields
    found = [field.name for field in fields if field.name in FIELDS]
    if not found:
        raise UnsuitableTable(f"the table has none of the columns {', '.join(FIELDS)}: add some, or use --values json")
    required = next((field.name for field in fields if field.required and field.name not in FIELDS), None)
    if required is not None:
        raise UnsuitableTable(f"column {required!r} is required, and a record has no such field: make it optional")
    return found


class Conversion:
    """Converts the records of one task. ``records`` counts them by partition, skipped ones included."""

    def __init__(self, form: RowForm, topic: str, *, skip: bool) -> None:
        self._form = form
        self._topic = topic
        self._skip = skip
        self.records: Counter[int] = Counter()
        self.skipped = 0

    def tables(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            records = pa.Table.from_batches([batch])
            for number in records.column("partition").value_counts():
                self.records[number["values"].as_py()] += number["counts"].as_py()
            yield from (rows for rows in self._rows(records) if rows.num_rows)

    def _rows(self, records: pa.Table) -> Iterator[pa.Table]:
        """Finds bad records by halving, so that few of them cost little."""
        try:
            rows = self._form.rows(records)
        except RowsRefused as error:
            if not self._skip or error.row is None:
                raise self._bad(records, error) from error
            if records.num_rows == 1:
                self.skipped += 1
                return
            half = records.num_rows // 2
            yield from self._rows(records.slice(0, half))
            yield from self._rows(records.slice(half))
        else:
            yield rows

    def _bad(self, records: pa.Table, error: RowsRefused) -> BadRecord:
        column = f"column {error.column!r} " if error.column is not None else ""
        if error.row is None:
            return BadRecord(f"records of {self._topic} are no rows of the table: {column}{error.why}")
        partition, offset = (records.column(name)[error.row - 1].as_py() for name in PLACE)
        return BadRecord(f"{self._topic}/{partition}, offset {offset}: {column}{error.why}")


def _utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
