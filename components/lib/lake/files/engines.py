"""The choice of a table's file engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from components.lib.lake.files.json_lines import JsonLinesEngine
from components.lib.lake.files.parquet import ParquetEngine
from components.lib.lake.files.writer_protocol import FileEngine
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from registry.json_text import EMPTY_OBJECT, JsonText, parse_json

_ENGINES: dict[str, Callable[[str, dict[str, Any]], FileEngine]] = {
    "parquet": ParquetEngine.of,
    "json": JsonLinesEngine.of,
}


def engine_of(schema: TableSchema, config: JsonText = EMPTY_OBJECT) -> FileEngine:
    """Returns the engine of the table's format; ``config`` is `TableMetadata.engine_config`."""
    make = _ENGINES.get(schema.format)
    if make is None:
        raise SchemaProblem(f"format {schema.format!r} has no engine: use one of {', '.join(_ENGINES)}")
    options = parse_json(config)
    if not isinstance(options, dict):
        raise SchemaProblem(f"engine_config is {config!s}, not an object of options")
    return make(schema.compression, options)
