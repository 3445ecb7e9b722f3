"""JSON lines, for users and tools that read nothing else. Iceberg has no such format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, ValidationError

from components.lib.lake.files.sorting import sort
from components.lib.lake.files.writer_protocol import WrittenFile
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema, validation_message
from components.lib.lake.storage.output_streams import ChecksummedSink, Writable
from registry.json_text import JsonText, to_json_text
from registry.models import ColumnStats

_EXTENSIONS = {"gzip": ".json.gz", "zstd": ".json.zst", "none": ".json"}
_ROWS_AT_ONCE = 10_000  # converted to Python objects


class JsonOptions(BaseModel):
    """`engine_config` and compression of a table in this format."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    compression: Literal["zstd", "gzip", "none"] = "zstd"


class JsonLinesEngine:
    file_type = "json"

    def __init__(self, options: JsonOptions | None = None) -> None:
        self._options = options or JsonOptions()

    @classmethod
    def of(cls, compression: str, config: dict[str, Any]) -> JsonLinesEngine:
        name = compression.lower()
        try:
            return cls(JsonOptions(**{"compression": "none" if name == "uncompressed" else name, **config}))
        except ValidationError as error:
            raise SchemaProblem(f"engine_config or compression of a JSON table: {validation_message(error)}") from error

    @property
    def extension(self) -> str:
        return _EXTENSIONS[self._options.compression]

    @property
    def compressed(self) -> bool:
        return self._options.compression != "none"

    def write(self, table: pa.Table, schema: TableSchema, sink: Writable) -> WrittenFile:
        output = ChecksummedSink(sink)
        rows = sort(table, schema)
        if self.compressed:
            with pa.CompressedOutputStream(output, self._options.compression) as stream:
                for lines in _encoded(rows):
                    stream.write(lines)
        else:
            for lines in _encoded(rows):
                output.write(lines)
        return WrittenFile(output.size, rows.num_rows, output.checksum, _statistics(rows, schema))


def _encoded(table: pa.Table) -> Iterator[bytes]:
    for batch in table.to_batches(_ROWS_AT_ONCE):
        yield _encoder.encode_lines(batch.to_pylist())


_encoder = msgspec.json.Encoder()  # decimals as text, times in ISO form, bytes in base64, NaN as null


def _statistics(table: pa.Table, schema: TableSchema) -> JsonText:
    """Returns counts of top-level columns. Bounds would be of no use: engines do not prune such files."""
    found: dict[str, ColumnStats] = {}
    for field in schema.iceberg.fields:
        column = table.column(field.name)
        floating = pa.types.is_floating(column.type)
        nan = (pc.sum(pc.is_nan(column)).as_py() or 0) if floating else None
        found[str(field.field_id)] = ColumnStats(table.num_rows, column.null_count, nan)
    return to_json_text(found)
