"""Variable-length integers: seven bits per byte, the lowest first; the highest bit says that more bytes follow.

Unsigned as in LEB128, Thrift and Protocol Buffers. Signed ones are zigzag-encoded first, as in Avro and Thrift.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

_MOST_BYTES = 10  # hold 64 bits
_LIMIT = 2**64
_MOST_STREAM_BITS = 63


class VarintTooLong(ValueError):
    """A value that has more bits than it may have."""


def append_unsigned(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def append_signed(out: bytearray, value: int) -> None:
    append_unsigned(out, (value << 1) ^ (value >> 63))


@lru_cache(maxsize=1 << 14)
def encode_signed(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 127:  # `append_signed` inlined: the manifest encoder calls this for every number
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def encode_all(values: Iterable[int]) -> bytes:
    """Encodes unsigned values one after the other."""
    out = bytearray()
    for value in values:
        while value > 127:  # `append_unsigned` inlined: indexes of segments have thousands of values
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def decode_all(data: bytes) -> Iterator[int]:
    """Raises ValueError if the last value is cut off, `VarintTooLong` if one has more than 63 bits."""
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        if byte & 128:
            shift += 7
            if shift >= _MOST_STREAM_BITS:
                raise VarintTooLong(f"a number of more than {_MOST_STREAM_BITS} bits")
        else:
            yield value
            value = shift = 0
    if shift:
        raise ValueError("ends within a number")


def read_unsigned(data: bytes, offset: int) -> tuple[int, int]:
    """Returns the value and the offset behind it. Raises `VarintTooLong` if it has more than 64 bits, IndexError
    if the bytes end inside it.
    """
    value = 0
    for shift in range(0, 7 * _MOST_BYTES, 7):
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >= _LIMIT:
                break
            return value, offset
    raise VarintTooLong("a number has more than 64 bits")


def read_signed(data: bytes, offset: int) -> tuple[int, int]:
    """Like `read_unsigned`, for zigzag-encoded values."""
    value = data[offset]
    if value < 128:
        return (value >> 1) ^ -(value & 1), offset + 1
    value, offset = read_unsigned(data, offset)
    return (value >> 1) ^ -(value & 1), offset
