from __future__ import annotations

import gzip
import hashlib
import io
import json

import pyarrow as pa
import pytest
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform

from components.lib.lake.files import engine_of
from registry.json_text import parse_json_as
from registry.models import ColumnStats
from tests.lake import EVERYTHING, FULL_ROW, rows_of, table_schema


@pytest.mark.parametrize(("compression", "extension"), [("none", ".json"), ("gzip", ".json.gz"), ("zstd", ".json.zst")])
def test_one_line_per_row(compression: str, extension: str) -> None:
    order = [SortField(1, transform=IdentityTransform(), direction=SortDirection.DESC, null_order=NullOrder.NULLS_LAST)]
    schema = table_schema(EVERYTHING, order=order, format="json", compression=compression)
    engine, sink = engine_of(schema), io.BytesIO()
    facts = engine.write(rows_of(schema, FULL_ROW, {"id": 9}), schema, sink)
    data = sink.getvalue()
    assert engine.extension == extension
    assert (facts.size, facts.rows, facts.checksum) == (len(data), 2, f"sha256:{hashlib.sha256(data).hexdigest()}")
    if compression == "gzip":
        data = gzip.decompress(data)
    elif compression == "zstd":
        data = pa.CompressedInputStream(io.BytesIO(data), "zstd").read()
    last, first = [json.loads(line) for line in data.splitlines()]
    assert (last["id"], first["id"]) == (9, 1)
    assert (first["price"], first["day"], first["double"]) == ("1.23", "2024-05-01", None)
    stats = parse_json_as(facts.column_stats, dict[int, ColumnStats])
    assert stats[1] == ColumnStats(2)
    assert stats[5] == ColumnStats(2, 1, 1)
