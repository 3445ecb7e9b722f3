"""Rows as text: JSON lines as `insert` reads them, records as `topics to-table` does, CSV.

Promised: only InsertError or BadRecord comes out, with the row's number; skipping leaves exactly the bad records out;
reading all at once gives what reading one by one gives; and a value that is taken is the one that was written, compared
with Python's own JSON reader.
"""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema

from components.commands.topic_to_table.conversion import Conversion, row_form
from components.commands.topic_to_table.errors import BadRecord
from components.commands.topic_to_table.json_columns import JsonColumns
from components.lib.storage_manager.coercion import coerce
from components.lib.storage_manager.errors import InsertError, RowsRefused
from components.lib.storage_manager.json_rows import read_json
from components.lib.storage_manager.readers import open_source
from tests.fuzz.mutations import mutated
from tests.lake import EVERYTHING, table_schema

WHOLE = table_schema(EVERYTHING)
QUICK = table_schema(
    Schema(*(EVERYTHING.find_field(name) for name in ("id", "flag", "small", "price", "huge", "name", "key", "at")))
)
FLAT = table_schema(Schema(*(field for field in EVERYTHING.fields if field.field_type.is_primitive)))
FULL: dict[str, Any] = {
    "id": 1, "flag": True, "small": -3, "single": 1.5, "double": 2.5, "price": 1.25, "amount": "-4.5", "huge": 12345.5,
    "day": "2024-05-01", "clock": "01:02:03.000004", "local": "2024-05-01T12:00:00", "at": "2024-05-01T14:00:00+02:00",
    "name": "é", "raw": "/w==", "code": "YWJjZA==", "key": "00000000-0000-0000-0000-000000000005",
    "scores": [1.0, None, 2], "place": {"x": 1.5, "label": "q"}, "tags": {"k": 1},
}  # fmt: skip
COLUMNS = {id(schema): JsonColumns(schema) for schema in (WHOLE, QUICK)}
VALUES = [
    "1e400", "-1e400", "1e-400", "1e-41", "1E-999999999", "1e999999999", "1e99999999999999999999", "0e-999999999",
    "1e37", "1e38", "1.25" + "0" * 60, "0." + "0" * 50 + "1", "9" * 38, "9" * 39, "9" * 400, "9" * 5_000, "-0",
    "-0.0", "125e-2", "9007199254740993", "16777217", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "2147483648", "NaN", "Infinity", "null", "true", '"NaN"', '"-Infinity"', '"1e-41"',
    '"1\\u0065-41"', '"1e\\u002d999999999"', '"1_0"', '" 7"', '"7 "', '"\\ud800"', '"\\ud83e\\udd8a"', '"a\\u0000b"',
    '"' + "x" * 5_000 + '"', "[]", "{}", "[null]", "[[]]", "[" * 1_200 + "]" * 1_200,
    '{"x":' * 1_200 + "1" + "}" * 1_200, "[" * 900 + "]" * 900, '[["k", 1]]', '[["k", 1], ["k", 2]]', '{"k": null}',
    '{"": 1}', '"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59.999999-14:00"', '"2024-02-30"', '"0000-01-01"',
    '"24:00:00"', '"2024-05-01T12:00:00Z"', '"/w="', '"===="',
]  # fmt: skip
WORDS = [value.encode() for value in VALUES] + [
    b"\\",
    b'"',
    b",",
    b":",
    b"{",
    b"}",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
]


def play(rng: random.Random) -> None:
    if rng.random() < 0.2:
        _csv(rng)
        return
    schema = rng.choice((WHOLE, QUICK))
    names = [field.name for field in schema.iceberg.fields]
    lines = [_line(rng, names) for _ in range(rng.randrange(1, 6))]
    good = [line for line in lines if _read(line, schema) is not None]
    _convert(lines, good, schema)
    columns = COLUMNS[id(schema)]
    values = pa.array(good, pa.binary())
    at_once = columns.rows(values)
    at_once.validate(full=True)
    assert at_once.equals(coerce(columns._one_by_one(values), schema)), good
    for line, row in zip(good, at_once.to_pylist() if _showable(at_once) else (), strict=False):
        _compare(json.loads(line, parse_float=Decimal), row, line)


def _line(rng: random.Random, names: list[str]) -> bytes:
    row = {name: FULL[name] for name in names if name == "id" or rng.random() < 0.5}
    text = json.dumps(row, ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.5:
        field = json.dumps(rng.choice(names)) + ": " + rng.choice(VALUES)
        text = text[:-1] + ", " + field + "}"  # the last of two counts
    data = text.encode()
    return mutated(rng, data, WORDS) if rng.random() < 0.4 else data


def _read(line: bytes, schema: Any) -> pa.Table | None:
    if not line.strip():
        return None
    try:
        (table,) = read_json([line], schema, fill_missing=True)
        return coerce(table, schema)
    except RowsRefused as error:
        if error.row != 1:
            raise
        return None


def _convert(lines: list[bytes], good: list[bytes], schema: Any) -> None:
    size = len(lines)
    batch = pa.record_batch(
        [pa.array([0] * size, pa.int32()), pa.array(range(size), pa.int64()), pa.array(lines, pa.binary())],
        ["partition", "offset", "value"],
    )
    skipping = Conversion(row_form(schema, "json"), "orders", skip=True)
    assert sum(table.num_rows for table in skipping.tables([batch])) == len(good)
    assert skipping.skipped == size - len(good)
    stopping = Conversion(row_form(schema, "json"), "orders", skip=False)
    try:
        list(stopping.tables([batch]))
    except BadRecord as error:
        if len(good) == size or "orders/0, offset " not in str(error):
            raise
    else:
        assert len(good) == size


def _showable(table: pa.Table) -> bool:
    """Times before the year 1 and after 9999 fit into the table, but not into Python."""
    try:
        table.to_pylist()
    except (OverflowError, ValueError):
        return False
    return True


def _compare(written: Mapping[str, Any], row: Mapping[str, Any], line: bytes) -> None:
    for name in ("id", "small", "flag", "name"):
        assert row.get(name) == written.get(name), (name, line)
    for name in ("price", "amount", "huge"):
        if written.get(name) is not None and name in row:
            assert row[name] == Decimal(written[name]), (name, line)
    for name in ("single", "double"):
        if written.get(name) is not None and name in row:
            assert math.isclose(row[name], float(written[name]), rel_tol=1e-6, abs_tol=1e-44), (name, line)


def _csv(rng: random.Random) -> None:
    names = [field.name for field in FLAT.iceberg.fields]
    cells = [str(FULL[name]) if rng.random() < 0.7 else rng.choice(("", json.loads(_text(rng)))) for name in names]
    if rng.random() < 0.4:
        cells[rng.randrange(len(cells))] = rng.choice(VALUES).replace('"', "")
    data = (",".join(names) + "\n" + ",".join(str(cell) for cell in cells) + "\n").encode(errors="replace")
    data = mutated(rng, data, WORDS) if rng.random() < 0.3 else data
    try:
        for table in open_source(io.BytesIO(data), None, "csv", FLAT, fill_missing=True).batches:
            rows = coerce(table, FLAT, fill_missing=True)
            rows.validate(full=True)
            _compare_decimals(data, rows)
    except InsertError:
        return


def _text(rng: random.Random) -> str:
    return rng.choice(['"x"', '"1e-41"', '"1.5"', '"2024-05-01"', '"true"', '"1e38"'])


def _compare_decimals(data: bytes, rows: pa.Table) -> None:
    lines = data.decode(errors="replace").splitlines()
    if rows.num_rows != 1 or len(lines) != 2 or '"' in lines[1]:
        return
    cells = dict(zip(lines[0].split(","), lines[1].split(","), strict=False))
    for name in ("price", "amount", "huge"):
        try:
            wanted = Decimal(cells.get(name, ""))
        except InvalidOperation:
            continue
        assert rows[name].to_pylist() == [wanted], data
