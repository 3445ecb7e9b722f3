"""`FileEngine`: what one writes to add a format."""

from __future__ import annotations

from typing import Protocol

import msgspec
import pyarrow as pa

from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.output_streams import Writable
from registry.json_text import JsonText


class WrittenFile(msgspec.Struct, frozen=True):
    """What the registry wants to know of a file, counted while its bytes went by."""

    size: int
    rows: int
    checksum: str
    column_stats: JsonText  # field id -> ColumnStats


class FileEngine(Protocol):
    @property
    def file_type(self) -> str:
        """The registry's name for it, as in `table_metadata.format`."""
        ...

    @property
    def extension(self) -> str: ...

    @property
    def compressed(self) -> bool: ...

    def write(self, table: pa.Table, schema: TableSchema, sink: Writable) -> WrittenFile:
        """All rows of one partition, in any order; the table's columns are exactly those of `TableSchema.arrow`.

        Rows are written in the table's sort order. Blocks: call it in a thread. Safe to call from several.
        """
        ...
