"""The last eight bytes of a Parquet file: the length of its footer, and the magic number."""

from __future__ import annotations

MAGIC = b"PAR1"
TAIL = 8


def footer_length(ending: bytes) -> int:
    """Returns the footer's length, without the tail, from the last bytes of a file. The length is not trusted.

    Raises ValueError if the bytes are not the end of a Parquet file.
    """
    if len(ending) < TAIL or ending[-4:] != MAGIC:
        raise ValueError(f"not a Parquet file: it does not end with {MAGIC.decode()}")
    return int.from_bytes(ending[-TAIL:-4], "little")
