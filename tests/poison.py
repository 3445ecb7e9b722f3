"""Parquet files that harm their readers, made from files of our own writer."""

from __future__ import annotations

from pathlib import Path

_COLUMN_OF_LONGS = b"\x1c\x15\x04\x19"  # how the metadata of a column chunk of 64-bit numbers begins
_OF_ANOTHER_TYPE = b"\x1c\x15\x06\x19"

HANGS = b"PAR1" + b"\x19\xf7\x80\x80\x80\x80\x80\x80\x80\x02" + b"\0\0" + (12).to_bytes(4, "little") + b"PAR1"
"""A list of 2^50 doubles, which keeps a credulous reader busy forever."""


def aborting(data: bytes) -> bytes:
    """One bit of the footer differs: a column chunk has not the type of its column. Arrow ends its process when it
    looks at the chunk's statistics. As many bytes and rows as before.
    """
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    place = data.index(_COLUMN_OF_LONGS, footer)
    return data[:place] + _OF_ANOTHER_TYPE + data[place + len(_OF_ANOTHER_TYPE) :]


def poison(path: Path) -> None:
    path.write_bytes(aborting(path.read_bytes()))
