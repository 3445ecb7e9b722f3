"""Damaged Parquet files, made from files of our own writer; deterministic per seed."""

from __future__ import annotations

import io
import random

from components.lib.lake.files.parquet import ParquetEngine, ParquetOptions
from components.lib.lake.schema.table_schema import TableSchema
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, rows_of, table_schema

SCHEMA = table_schema(EVERYTHING)


def stored(schema: TableSchema, first: int, rows: int = 24) -> bytes:
    """Returns a file with three row groups."""
    sink = io.BytesIO()
    content = [{**(FULL_ROW if number % 3 else EMPTY_ROW), "id": first + number} for number in range(rows)]
    ParquetEngine(ParquetOptions(row_group_rows=8)).write(rows_of(schema, *content), schema, sink)
    return sink.getvalue()


def footer_start(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def damaged(data: bytes, chance: random.Random, *, pages: bool = False) -> bytes:
    """Returns a copy of the same length with one to three changes in the footer, and in the pages if wanted."""
    first, end = 4 if pages else footer_start(data), len(data) - 8
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        place = chance.randrange(first, end)
        match chance.randrange(5):
            case 0 | 1:
                changed[place] ^= 1 << chance.randrange(8)
            case 2:
                changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x19, 0x1C))
            case 3:
                length = min(chance.randrange(1, 12), end - place)
                changed[place : place + length] = b"\xff" * length
            case _:
                length = min(chance.randrange(1, 40), end - place)
                other = chance.randrange(first, end - length + 1)
                changed[place : place + length] = data[other : other + length]
    return bytes(changed)
