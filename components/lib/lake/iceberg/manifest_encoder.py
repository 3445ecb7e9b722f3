"""Encodes manifest entries as Avro: the same bytes as PyIceberg's encoder, in a fraction of its time, and one block for
many entries instead of one block each (decision 0020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any, TypeAlias

from pyiceberg.manifest import ManifestEntry
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from components.lib.lake.iceberg.pyiceberg_internals import (
    CustomDeleteManifestWriter,
    CustomManifestWriter,
    EncodedAvroFile,
    record_values,
    value_encoder,
)
from components.lib.varint import encode_signed

Put: TypeAlias = Callable[[list[bytes], Any], None]
"""Appends the bytes of a value."""

_BLOCK_BYTES = 1 << 20
_ABSENT, _PRESENT, _END = b"\x00", b"\x02", b"\x00"


class ManifestEntryFile(EncodedAvroFile[ManifestEntry]):
    """Buffers entries, and writes a block when the buffer is full and when the file is closed."""

    def __enter__(self) -> ManifestEntryFile:
        self._put = _struct(self.file_schema.as_struct())
        self._clear()
        super().__enter__()
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        if exctype is None and self._count:
            self._flush()
        super().__exit__(exctype, excinst, exctb)

    def write_block(self, objects: list[ManifestEntry]) -> None:
        for entry in objects:
            parts: list[bytes] = []
            self._put(parts, entry)
            self._buffer += b"".join(parts)
        self._count += len(objects)
        if len(self._buffer) >= _BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        self.write_encoded_block(self._count, bytes(self._buffer))
        self._clear()

    def _clear(self) -> None:
        self._buffer, self._count = bytearray(), 0


class ManifestEntryWriter(CustomManifestWriter):
    entry_file = ManifestEntryFile


class DeleteManifestEntryWriter(CustomDeleteManifestWriter):
    entry_file = ManifestEntryFile


def _kind(kind: IcebergType) -> Put:
    match kind:
        case IntegerType() | LongType():
            return lambda out, value: out.append(encode_signed(value))
        case StringType():
            return _text
        case BinaryType():
            return _bytes
        case ListType():
            return _repeated(_kind(kind.element_type))
        case MapType(key_type=IntegerType(), value_type=LongType()):
            return _numbers
        case MapType(key_type=IntegerType(), value_type=BinaryType()):
            return _bounds
    return _by_pyiceberg(kind)


@lru_cache(maxsize=64)
def _struct(kind: StructType) -> Put:
    """For an entry or its data file. PyIceberg encodes the partition, whose values can have any type."""
    puts = encoders(kind)

    def put(out: list[bytes], record: Record) -> None:
        for write, value in zip(puts, record_values(record), strict=True):
            write(out, value)

    return put


def encoders(kind: StructType) -> list[Put]:
    """Returns the encoder of each field. PyIceberg encodes nested records."""
    return [_field(field) for field in kind.fields]


def _field(field: NestedField) -> Put:
    kind = field.field_type
    put = _struct(kind) if isinstance(kind, StructType) and field.name == "data_file" else _kind(kind)
    return put if field.required else _optional(put)


def _optional(put: Put) -> Put:
    def optional(out: list[bytes], value: Any) -> None:
        if value is None:
            out.append(_ABSENT)
        else:
            out.append(_PRESENT)
            put(out, value)

    return optional


def _repeated(put: Put) -> Put:
    def repeated(out: list[bytes], values: list[Any]) -> None:
        if values:
            out.append(encode_signed(len(values)))
            for value in values:
                put(out, value)
        out.append(_END)

    return repeated


def _by_pyiceberg(kind: IcebergType) -> Put:
    encode = value_encoder(kind)
    return lambda out, value: out.append(encode(value))


def _text(out: list[bytes], value: str) -> None:
    _bytes(out, value.encode())


def _bytes(out: list[bytes], value: bytes) -> None:
    out += (encode_signed(len(value)), value)


def _numbers(out: list[bytes], values: Mapping[int, int]) -> None:
    if values:
        out.append(encode_signed(len(values)))
        for key, value in values.items():
            out += (encode_signed(key), encode_signed(value))
    out.append(_END)


def _bounds(out: list[bytes], values: Mapping[int, bytes]) -> None:
    if values:
        out.append(encode_signed(len(values)))
        for key, value in values.items():
            out += (encode_signed(key), encode_signed(len(value)), value)
    out.append(_END)
