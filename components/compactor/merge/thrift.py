"""Thrift's compact protocol, as far as a Parquet footer uses it: read into plain values, and written back.

A struct is a mapping from field number to (type, value), so that unknown fields survive. What is not
looked into (statistics, the schema) stays the bytes that it was.

The bytes are not trusted. Time and memory are bounded by their length: a list has no more elements than fit into the
bytes that are left, a varint has at most ten bytes, structs and lists nest 32 deep at most, and no more than
``_MOST_STRUCTS`` structs become mappings. Whatever breaks a bound is `BadThrift`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from components.lib.varint import VarintTooLong, append_signed, append_unsigned, read_signed, read_unsigned

Fields: TypeAlias = dict[int, tuple[int, Any]]
Shape: TypeAlias = Mapping[int, "Shape | None"]
"""Which fields of a struct, or of the structs in a list, are read into values, and their shapes; others stay bytes."""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

_NUMBERS = (I16, I32, I64)
_LEAST_BYTES = {DOUBLE: 8}  # of an element; at least one of every other type
_DEEPEST = 32  # Parquet's own structs nest seven deep
_MOST_STRUCTS = 1 << 21  # each costs some 100 bytes, and may be one byte of a footer
_HIGHEST_FIELD = 2**15


class BadThrift(ValueError):
    """Bytes that are no struct of the compact protocol."""


def read_struct(data: bytes, place: int, shape: Shape) -> tuple[Fields, int]:
    """The struct that begins at ``place``, and where it ends. BadThrift if the bytes are none."""
    try:
        found, end = _Reader(data).struct(place, shape, 0)
    except IndexError as error:
        raise BadThrift("the bytes end inside a struct") from error
    except VarintTooLong as error:
        raise BadThrift(str(error)) from error
    if end > len(data):
        raise BadThrift("the bytes end inside a struct")
    return found, end


def read_texts(data: bytes) -> list[bytes]:
    """A list of them, as a field that was left bytes. BadThrift if the bytes are none."""
    try:
        count, kind, place = _list_head(data, 0)
        if count and kind != BINARY:
            raise BadThrift(f"a list of type {kind} where texts are expected")
        found = []
        for _ in range(count):
            length, place = read_unsigned(data, place)
            found.append(data[place : place + length])
            place += length
    except IndexError as error:
        raise BadThrift("the bytes end inside a list") from error
    except VarintTooLong as error:
        raise BadThrift(str(error)) from error
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
            append_signed(out, number)
        last = number
        _write(out, kind, value)
    out.append(0)


class _Reader:
    """Of one footer: counts the structs that it makes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MOST_STRUCTS

    def struct(self, place: int, shape: Shape, depth: int) -> tuple[Fields, int]:
        data = self._data
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            raise BadThrift("structs are nested too deep" if self._left >= 0 else "there are too many structs")
        fields: Fields = {}
        number = 0
        while head := data[place]:
            place += 1
            kind = head & 15
            if head > 15:
                number += head >> 4
            else:
                number, place = read_signed(data, place)
                if not 0 < number < _HIGHEST_FIELD:
                    raise BadThrift(f"a field has the number {number}")
            if kind in _NUMBERS:
                value: Any
                value, place = read_signed(data, place)
            elif kind <= FALSE:
                value = None
            elif number in shape and kind in (STRUCT, LIST):
                inner = shape[number] or {}
                read = self.struct if kind == STRUCT else self._list
                value, place = read(place, inner, depth + 1)
            else:
                end = _skip(data, place, kind, depth + 1)
                value, place = data[place:end], end
            fields[number] = (kind, value)
        return fields, place + 1

    def _list(self, place: int, shape: Shape, depth: int) -> tuple[list[Fields], int]:
        """Of structs."""
        count, kind, place = _list_head(self._data, place)
        if count and kind != STRUCT:
            raise BadThrift(f"a list of type {kind} where structs are expected")
        found = []
        for _ in range(count):
            fields, place = self.struct(place, shape, depth + 1)
            found.append(fields)
        return found, place


def _list_head(data: bytes, place: int) -> tuple[int, int, int]:
    head = data[place]
    place += 1
    count = head >> 4
    if count == 15:
        count, place = read_unsigned(data, place)
    kind = head & 15
    if count * _LEAST_BYTES.get(kind, 1) > len(data) - place:
        raise BadThrift(f"a list is said to have {count:,} elements, and {len(data) - place:,} bytes are left")
    return count, kind, place


def _skip(data: bytes, place: int, kind: int, depth: int) -> int:  # noqa: C901  (one case a type)
    """Where a value ends. Most of a footer is skipped, so this is what reading one costs: hence the inlined cases."""
    if depth > _DEEPEST:
        raise BadThrift("structs are nested too deep")
    if kind == STRUCT:
        while head := data[place]:
            place += 1
            if head < 16:
                place = _skip(data, place, I16, depth)
            inner = head & 15
            if inner in _NUMBERS:
                while data[place] > 127:
                    place += 1
                place += 1
            elif inner == BINARY and data[place] < 128:
                place += 1 + data[place]
            elif inner > FALSE:
                place = _skip(data, place, inner, depth + 1)
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
            place = _skip(data, place, inner, depth + 1)
        return place
    if kind == BINARY:
        length, place = read_unsigned(data, place)
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


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in _NUMBERS:
        append_signed(out, value)
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
            append_unsigned(out, count)
        for fields in value:
            write_struct(out, fields)
