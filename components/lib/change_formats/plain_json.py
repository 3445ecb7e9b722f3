"""Plain JSON: the shape of `astha tail --json` and ``/events``, with the epoch."""

from __future__ import annotations

from astha.events import Event, Operation
from components.lib.change_formats.contract import Message, Origin
from components.lib.change_formats.keys import KEY_ENCODERS
from components.lib.change_formats.nested_rows import NESTED_ROW_ENCODERS
from registry.models import Row
from registry.position import Position


class PlainJsonFormat:
    content_type = "application/json"

    def change(self, event: Event[Row], origin: Origin, now_ms: int) -> Message:
        row, commit, operation = event.data, event.commit, event.operation
        kind = type(row)
        encode = NESTED_ROW_ENCODERS[kind]
        data = encode(row)
        if operation is Operation.INSERT or event.before is None:
            before = b"null"
        else:
            before = data if operation is Operation.DELETE else encode(event.before)
        value = (
            b'{"table":"%b","operation":"%b","position":%d,"transaction":%d,"index":%d,"last":%b,'
            b'"committed_at_us":%d,"data":%b,"before":%b,"epoch":%d}'
        ) % (
            kind.table.encode(), operation.encode(), commit.position, commit.transaction, event.index,
            b"true" if event.last else b"false", commit.committed_at, data, before, origin.epoch,
        )  # fmt: skip
        return Message(value, (), KEY_ENCODERS[kind](row))

    def snapshot_row(self, row: Row, position: Position, origin: Origin, now_ms: int, last: bool) -> Message:
        kind = type(row)
        value = (
            b'{"table":"%b","operation":"READ","position":%d,"transaction":null,"index":null,"last":%b,'
            b'"committed_at_us":null,"data":%b,"before":null,"epoch":%d}'
        ) % (
            kind.table.encode(), position, b"true" if last else b"false", NESTED_ROW_ENCODERS[kind](row), origin.epoch,
        )  # fmt: skip
        return Message(value, (), KEY_ENCODERS[kind](row))

    def key(self, row: Row, origin: Origin) -> bytes:
        return KEY_ENCODERS[type(row)](row)

    def tombstone(self, key: bytes) -> Message:
        return Message(None, (), key)
