"""`FileEngine`: the protocol to implement for a new file format."""

from __future__ import annotations

from typing import Protocol

import msgspec
import pyarrow as pa

from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.output_streams import Writable
from registry.json_text import JsonText


class WrittenFile(msgspec.Struct, frozen=True):
    """What the registry stores about a file, collected while it was written."""

    size: int
    rows: int
    checksum: str
    column_stats: JsonText  # field id -> ColumnStats


class FileEngine(Protocol):
    @property
    def file_type(self) -> str:
        """The format's name in the registry, as in `table_metadata.format`."""
        ...

    @property
    def extension(self) -> str: ...

    @property
    def compressed(self) -> bool: ...

    def write(self, table: pa.Table, schema: TableSchema, sink: Writable) -> WrittenFile:
        """Writes all rows of one partition, sorted by the table's sort order. The rows may arrive in any order; their
        columns are exactly those of `TableSchema.arrow`.

        Blocks: call it in a thread. Safe to call from several threads.
        """
        ...
