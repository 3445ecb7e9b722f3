"""Builders of rows and events."""

from __future__ import annotations

from typing import Any

import msgspec

from astha.events import Commit, Event, Operation
from registry.json_text import EMPTY_OBJECT, JsonText, to_json_text
from registry.models import FileAwaitingDeletion, Row, TableFile, TableMetadata, TableSnapshot
from registry.position import Position
from tests.parquet_files import as_row
from tests.samples import file


def event(data: Row, operation: Operation = Operation.INSERT) -> Event[Row]:
    return Event(operation, data, None if operation is Operation.INSERT else data, Commit(1, Position(1), 0, 1), 0)


def metadata(version: int = 1, **properties: str) -> TableMetadata:
    named = {f"snapshot.{name.replace('_', '-')}": value for name, value in properties.items()}
    empty = JsonText("[]")
    return TableMetadata(
        version, 1, version, EMPTY_OBJECT, "parquet", EMPTY_OBJECT, "parquet", "zstd", empty, empty,
        to_json_text(named), 0, 0, 0,
    )  # fmt: skip


def snapshot(number: int, status: str = "created", at: int = 0, **fields: Any) -> TableSnapshot:
    made = TableSnapshot(
        number, 1, number, at, "list.avro", EMPTY_OBJECT, 0, "manual", status, f"v{number}", None, at, at,  # type: ignore[arg-type]
    )  # fmt: skip
    return msgspec.structs.replace(made, **fields)


def table_file(number: int = 1, rows: int = 10, size: int = 100, **fields: Any) -> TableFile:
    made = as_row(file(f"s3://lake/{number}"), file_id=number)
    return msgspec.structs.replace(made, row_count=rows, file_size=size, **fields)


def awaiting(number: int, removed_at: int = 0, **fields: Any) -> FileAwaitingDeletion:
    of = table_file(number, **fields)
    return FileAwaitingDeletion(number, 1, of.file_path, of.file_size, "swap", to_json_text(of), removed_at)
