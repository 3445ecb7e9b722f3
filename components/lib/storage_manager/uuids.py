"""UUIDs as text, for formats and engines that have no type for them."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import UUIDType

from components.lib.lake.schema.table_schema import TableSchema
from components.lib.storage_manager.errors import RowsRefused


def uuid_columns(schema: TableSchema) -> list[str]:
    return [field.name for field in schema.iceberg.fields if isinstance(field.field_type, UUIDType)]


def with_uuids(table: pa.Table, name: str, first_row: int) -> pa.Table:
    """Returns the table with a column of text converted to UUIDs."""
    values: list[bytes | None] = []
    for number, text in enumerate(table.column(name).to_pylist()):
        try:
            values.append(None if text is None else UUID(text).bytes)
        except ValueError:
            raise RowsRefused(f"{text!r} is not a uuid", row=first_row + number, column=name) from None
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, pc.cast(pa.array(values, pa.binary(16)), pa.uuid()))
