"""Rows as JSON objects in which JSON columns are nested values, not text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from registry.json_text import json_columns
from registry.models import PUBLISHED, Row

_encoder = msgspec.json.Encoder()


def _row_encoder(kind: type[Row]) -> Callable[[Row], bytes]:
    names = kind.__struct_fields__
    nested = tuple(index for index, name in enumerate(names) if name in json_columns(kind))
    if not nested:
        return _encoder.encode
    # The same fields, with raw JSON where the row has JSON as text: the database has checked that it is valid.
    raw_type = msgspec.defstruct(f"Raw{kind.__name__}", [(name, Any) for name in names], gc=False)

    def encode(row: Row) -> bytes:
        values = list(msgspec.structs.astuple(row))
        for index in nested:
            if values[index] is not None:
                values[index] = msgspec.Raw(values[index])
        return _encoder.encode(raw_type(*values))

    return encode


NESTED_ROW_ENCODERS: Mapping[type[Row], Callable[[Row], bytes]] = {kind: _row_encoder(kind) for kind in PUBLISHED}
