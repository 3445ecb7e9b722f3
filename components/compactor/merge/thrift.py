"""Thrift's compact protocol, as far as a Parquet footer uses it: read into plain values, and written back.

A struct is a mapping from field number to (type, value), so that fields which nobody here knows survive. What is not
looked into (statistics, the schema) stays the bytes that it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Fields: TypeAlias = dict[int, tuple[int, Any]]
Shape: TypeAlias = Mapping[int, "Shape | None"]
"""Which fields of a struct, or of the structs in a list, are read into values, and their shapes; others stay bytes."""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

_NUMBERS = (I16, I32, I64)


class BadThrift(ValueError):
    """Bytes that are no struct of the compact protocol."""


def read_struct(data: bytes, place: int, shape: Shape) -> tuple[Fields, int]:
    """The struct that begins at ``place``, and where it ends."""
    try:
        return _struct(data, place, shape)
    except IndexError as error:
        raise BadThrift("the bytes end inside a struct") from error


def read_texts(data: bytes) -> list[bytes]:
    """A list of them, as a field that was left bytes."""
    count, _, place = _list_head(data, 0)
    found = []
    for _ in range(count):
        length, place = _varint(data, place)
        found.append(data[place : place + length])
        place += length
    return found


def write_struct(out: bytearray, fields: Fields) -> None:
    last = 0
    for number in sorted(fields):
        kind, value = fields[number]
        step = number - last
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            _write_number(out, number)
        last = number
        _write(out, kind, value)
    out.append(0)


def _struct(data: bytes, place: int, shape: Shape) -> tuple[Fields, int]:
    fields: Fields = {}
    number = 0
    while head := data[place]:
        place += 1
        kind = head & 15
        if head > 15:
            number += head >> 4
        else:
            number, place = _number(data, place)
        if kind in _NUMBERS:
            value: Any
            value, place = _number(data, place)
        elif kind <= FALSE:
            value = None
        elif number in shape and kind in (STRUCT, LIST):
            inner = shape[number] or {}
            value, place = _struct(data, place, inner) if kind == STRUCT else _list(data, place, inner)
        else:
            end = _skip(data, place, kind)
            value, place = data[place:end], end
        fields[number] = (kind, value)
    return fields, place + 1


def _list(data: bytes, place: int, shape: Shape) -> tuple[list[Fields], int]:
    """Of structs."""
    count, kind, place = _list_head(data, place)
    if count and kind != STRUCT:
        raise BadThrift(f"a list of type {kind} where structs are expected")
    found = []
    for _ in range(count):
        fields, place = _struct(data, place, shape)
        found.append(fields)
    return found, place


def _list_head(data: bytes, place: int) -> tuple[int, int, int]:
    head = data[place]
    place += 1
    count = head >> 4
    if count == 15:
        count, place = _varint(data, place)
    return count, head & 15, place


def _skip(data: bytes, place: int, kind: int) -> int:  # noqa: C901  (one case a type)
    """Where a value ends. Most of a footer is skipped, so this is what reading one costs: hence the inlined cases."""
    if kind == STRUCT:
        while head := data[place]:
            place += 1
            if head < 16:
                place = _skip(data, place, I16)
            inner = head & 15
            if inner in _NUMBERS:
                while data[place] > 127:
                    place += 1
                place += 1
            elif inner == BINARY and data[place] < 128:
                place += 1 + data[place]
            elif inner > FALSE:
                place = _skip(data, place, inner)
        return place + 1
    if kind in (LIST, SET):
        count, inner, place = _list_head(data, place)
        if inner <= BYTE:
            return place + count
        if inner in _NUMBERS:
            for _ in range(count):
                while data[place] > 127:
                    place += 1
                place += 1
            return place
        for _ in range(count):
            place = _skip(data, place, inner)
        return place
    if kind == BINARY:
        length, place = _varint(data, place)
        return place + length
    if kind in _NUMBERS:
        while data[place] > 127:
            place += 1
        return place + 1
    if kind == BYTE:
        return place + 1
    if kind == DOUBLE:
        return place + 8
    raise BadThrift(f"type {kind} in a footer")  # maps: Parquet has none


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7


def _number(data: bytes, place: int) -> tuple[int, int]:
    value = data[place]
    if value < 128:
        return (value >> 1) ^ -(value & 1), place + 1
    value, place = _varint(data, place)
    return (value >> 1) ^ -(value & 1), place


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in _NUMBERS:
        _write_number(out, value)
    elif kind <= FALSE:
        return
    elif isinstance(value, bytes):
        out += value
    elif kind == STRUCT:
        write_struct(out, value)
    else:
        count = len(value)
        if count < 15:
            out.append(count << 4 | STRUCT)
        else:
            out.append(0xF0 | STRUCT)
            _write_varint(out, count)
        for fields in value:
            write_struct(out, fields)


def _write_number(out: bytearray, value: int) -> None:
    _write_varint(out, (value << 1) ^ (value >> 63))


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
