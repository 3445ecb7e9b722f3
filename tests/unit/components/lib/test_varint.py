"""Variable-length integers, against PyIceberg's Avro encoder and by reading back what was written."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.encoder import BinaryEncoder

from components.lib.varint import (
    VarintTooLong,
    append_signed,
    append_unsigned,
    decode_all,
    encode_all,
    encode_signed,
    read_signed,
    read_unsigned,
)

SIGNED = st.integers(-(2**63), 2**63 - 1)


@given(SIGNED)
def test_signed_values_are_those_of_avro(value: int) -> None:
    avro = io.BytesIO()
    BinaryEncoder(avro).write_int(value)
    out = bytearray(b"x")
    append_signed(out, value)
    assert encode_signed(value) == bytes(out[1:]) == avro.getvalue()
    assert read_signed(bytes(out), 1) == (value, len(out))


@given(st.integers(0, 2**64 - 1))
def test_unsigned_values_are_read_back(value: int) -> None:
    out = bytearray()
    append_unsigned(out, value)
    assert read_unsigned(bytes(out), 0) == (value, len(out))


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_many_values_are_read_back(values: list[int]) -> None:
    assert list(decode_all(encode_all(values))) == values


def test_values_that_are_too_long_are_refused() -> None:
    with pytest.raises(VarintTooLong, match="64 bits"):
        read_unsigned(b"\xff" * 11, 0)
    with pytest.raises(VarintTooLong, match="64 bits"):
        read_unsigned(b"\xff" * 9 + b"\x02", 0)
    with pytest.raises(VarintTooLong, match="63 bits"):
        list(decode_all(b"\xff" * 10))


def test_values_that_are_cut_off_are_refused() -> None:
    with pytest.raises(IndexError):
        read_unsigned(b"\x80", 0)
    with pytest.raises(ValueError, match="within a number"):
        list(decode_all(b"\x01\x80"))
