"""Records as lines of text: values, keys before a separator, or JSON, which `consume` writes and `produce` reads."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec

from components.lib.streams.format import NewRecord, Record

Write: TypeAlias = Callable[[int, Record], bytes]


class BadLine(ValueError):
    """The line is not a record."""


class _JsonRecord(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Bytes that are not UTF-8 are base64, under another name."""

    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str | None] = {}
    timestamp: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)] | None = None
    offset: int | None = None


_DECODER = msgspec.json.Decoder(_JsonRecord)
_ENCODER = msgspec.json.Encoder()


def read_line(line: bytes, separator: bytes | None) -> tuple[NewRecord, int | None]:
    """Returns the record, and the partition that the line names."""
    if separator is None:
        return NewRecord(line), None
    key, found, value = line.partition(separator)
    return (NewRecord(value, key=key) if found else NewRecord(line)), None


def read_json(line: bytes) -> tuple[NewRecord, int | None]:
    try:
        given = _DECODER.decode(line)
        value, key = _bytes(given.value, given.value_base64), _bytes(given.key, given.key_base64)
    except (msgspec.DecodeError, NotBase64, ValueError) as error:
        raise BadLine(str(error)) from error
    headers = tuple((name, None if text is None else text.encode()) for name, text in given.headers.items())
    return NewRecord(value, key=key, headers=headers, timestamp=given.timestamp), given.partition


def write_line(separator: bytes | None) -> Write:
    def write(_partition: int, record: Record) -> bytes:
        value = record.value or b""
        return value + b"\n" if separator is None else b"%b%b%b\n" % (record.key or b"", separator, value)

    return write


def write_json(partition: int, record: Record) -> bytes:
    shown: dict[str, Any] = {"partition": partition, "offset": record.offset, "timestamp": record.timestamp}
    for name, data in (("key", record.key), ("value", record.value)):
        if data is None:
            shown[name] = None
            continue
        try:
            shown[name] = data.decode()
        except UnicodeDecodeError:
            shown[f"{name}_base64"] = b64encode(data).decode()
    if record.headers:
        shown["headers"] = {
            name: None if value is None else value.decode(errors="replace") for name, value in record.headers
        }
    return _ENCODER.encode(shown) + b"\n"


def _bytes(text: str | None, base64: str | None) -> bytes | None:
    if base64 is not None:
        return b64decode(base64, validate=True)
    return None if text is None else text.encode()
