"""Records in Kafka's message format 2, and the partition of a key.

kafka-python does the same with many small calls for each record, which limit its rate. Here the constant parts of a
record are encoded once, and a record is one concatenation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache

from components.lib.varint import encode_signed

_word, _each_word = struct.Struct("<I").unpack_from, struct.Struct("<I").iter_unpack

NO_HEADERS = b"\0"
_NULL = b"\1"  # a length of -1
_SEED, _FACTOR, _BITS_32 = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def encode_header(name: str, value: bytes) -> bytes:
    encoded = name.encode()
    return b"%b%b%b%b" % (encode_signed(len(encoded)), encoded, encode_signed(len(value)), value)


def encode_headers(headers: Iterable[tuple[str, bytes]]) -> bytes:
    """Returns the last part of a record: the number of headers, then each of them."""
    parts = [encode_header(name, value) for name, value in headers]
    return encode_signed(len(parts)) + b"".join(parts)


def encode_record(number: int, key: bytes | None, value: bytes | None, headers: bytes) -> bytes:
    """`number` is that in its batch; the time is that of the batch."""
    body = b"\0\0%b%b%b%b%b%b" % (
        encode_signed(number),
        _NULL if key is None else encode_signed(len(key)),
        key or b"",
        _NULL if value is None else encode_signed(len(value)),
        value or b"",
        headers,
    )
    return encode_signed(len(body)) + body


def partition_index(key: bytes, partitions: int) -> int:
    """Returns the index among so many partitions, as all of Kafka's clients choose it: murmur2 of the key."""
    length = len(key)
    rest = length & 3
    last = length - rest - 4
    if last >= 0:
        word: int = _word(key, last)[0] * _FACTOR & _BITS_32
        state = (_hash_words(length, key[:last]) * _FACTOR ^ (word ^ word >> 24) * _FACTOR) & _BITS_32
    else:
        state = _SEED ^ length
    if rest:
        state = (state ^ int.from_bytes(key[length - rest :], "little")) * _FACTOR & _BITS_32
    state = (state ^ state >> 13) * _FACTOR & _BITS_32
    return ((state ^ state >> 15) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=1 << 12)
def _hash_words(length: int, words: bytes) -> int:
    """Returns the state of murmur2 behind these words of a key of that length. Cached, because the keys of a table
    begin alike, and often differ only in their last word.
    """
    state = _SEED ^ length
    for (word,) in _each_word(words):
        word = word * _FACTOR & _BITS_32
        state = (state * _FACTOR ^ (word ^ word >> 24) * _FACTOR) & _BITS_32
    return state
