"""Reads the records of an Avro file by its own schema, and tells where each of them begins.

PyIceberg's reader returns records only: with the bytes, the records that two manifest lists share are found by
comparing bytes, and decoded once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from components.lib.varint import read_signed

Decode: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value at an offset, and the offset behind it."""

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_MAX_BYTES = 1 << 28
"""Of all records: a list of a million manifests has less."""


class UnknownCodec(ValueError):
    """The blocks are compressed in a way that Python's own library can't read."""


class AvroRecords(msgspec.Struct, frozen=True):
    """`content` has `count` records, one after the other."""

    schema: bytes
    content: bytes
    count: int


def read_records(data: bytes) -> AvroRecords:
    """Raises ValueError or IndexError for what is not a complete Avro file."""
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin like an Avro file")
    header, offset = _map(_bytes)(data, len(_MAGIC))
    codec = header.get("avro.codec", b"null")
    sync = data[offset : offset + _SYNC_BYTES]
    offset += _SYNC_BYTES
    blocks: list[bytes] = []
    count = size = 0
    while offset < len(data):
        records, offset = read_signed(data, offset)
        block, offset = _bytes(data, offset)
        if data[offset : offset + _SYNC_BYTES] != sync:
            raise ValueError("a block does not end with the file's mark")
        offset += _SYNC_BYTES
        blocks.append(_decompressed(block, codec, _MAX_BYTES - size))
        size += len(blocks[-1])
        count += records
    return AvroRecords(header["avro.schema"], b"".join(blocks), count)


def _decompressed(block: bytes, codec: bytes, most: int) -> bytes:
    if codec == b"deflate":
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            block = inflater.decompress(block, most + 1)
        except zlib.error as error:
            raise ValueError(f"a block can't be decompressed: {error}") from error
    elif codec != b"null":
        raise UnknownCodec(codec.decode(errors="replace"))
    if len(block) > most:
        raise ValueError(f"its records have more than {_MAX_BYTES:,} bytes")
    return block


@lru_cache(maxsize=64)
def record_decoder(schema: bytes) -> Decode:
    """Returns a decoder of records with this schema, as dictionaries by field id (or by name for fields without)."""
    try:
        return _decoder(msgspec.json.decode(schema))
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ValueError(f"its schema can't be read: {error}") from error


def _decoder(schema: Any) -> Decode:
    if isinstance(schema, list):
        return _union([_decoder(branch) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _decoder(kind)
    match kind:
        case "record":
            fields = schema["fields"]
            return _record([(field.get("field-id", field["name"]), _decoder(field["type"])) for field in fields])
        case "array":
            return _array(_decoder(schema["items"]))
        case "map":
            return _map(_decoder(schema["values"]))
        case "fixed":
            return _fixed(schema["size"])
    if kind not in _SIMPLE:
        raise ValueError(f"its schema has a type {kind!r} that manifest lists do not have")
    return _SIMPLE[kind]


def _record(fields: list[tuple[int | str, Decode]]) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[dict[int | str, Any], int]:
        values: dict[int | str, Any] = {}
        for key, read in fields:
            values[key], offset = read(data, offset)
        return values, offset

    return decode


def _union(branches: list[Decode]) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[Any, int]:
        place, offset = read_signed(data, offset)
        if not 0 <= place < len(branches):
            raise ValueError(f"branch {place} of a union of {len(branches)}")
        return branches[place](data, offset)

    return decode


def _array(item: Decode) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        while True:
            count, offset = _block(data, offset)
            if not count:
                return values, offset
            for _ in range(count):
                value, offset = item(data, offset)
                values.append(value)

    return decode


def _map(item: Decode) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        while True:
            count, offset = _block(data, offset)
            if not count:
                return values, offset
            for _ in range(count):
                key, offset = _text(data, offset)
                values[key], offset = item(data, offset)

    return decode


def _block(data: bytes, offset: int) -> tuple[int, int]:
    """Returns the number of items in the next block. A negative number is followed by the block's size."""
    count, offset = read_signed(data, offset)
    if count < 0:
        _, offset = read_signed(data, offset)
        count = -count
    if count > len(data) - offset:  # each has at least a byte
        raise ValueError(f"{count} items in {len(data) - offset} bytes")
    return count, offset


def _bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    length, offset = read_signed(data, offset)
    end = offset + length
    if not 0 <= length <= len(data) - offset:
        raise ValueError(f"a value of {length} bytes ends behind the file")
    return data[offset:end], end


def _text(data: bytes, offset: int) -> tuple[str, int]:
    value, offset = _bytes(data, offset)
    return value.decode(), offset


def _fixed(size: int) -> Decode:
    def decode(data: bytes, offset: int) -> tuple[bytes, int]:
        end = offset + size
        if end > len(data):
            raise ValueError(f"a value of {size} bytes ends behind the file")
        return data[offset:end], end

    return decode


_SIMPLE: dict[str, Decode] = {
    "null": lambda _, offset: (None, offset),
    "boolean": lambda data, offset: (data[offset] != 0, offset + 1),
    "int": read_signed,
    "long": read_signed,
    "float": _fixed(4),
    "double": _fixed(8),
    "bytes": _bytes,
    "string": _text,
}
