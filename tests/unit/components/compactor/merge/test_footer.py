from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from components.compactor.merge import thrift
from components.compactor.merge.footer import Footer, length_of, path_of
from components.compactor.merge.task import BadInput, MergeFailed
from components.compactor.merge.thrift import BadThrift, read_struct, write_struct
from components.lib.lake.files.parquet import ParquetEngine, ParquetOptions
from components.lib.lake.files.statistics import leaves
from components.lib.parquet_tail import TAIL
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, rows_of, table_schema

SCHEMA = table_schema(EVERYTHING)


def stored() -> bytes:
    sink = io.BytesIO()
    rows = rows_of(SCHEMA, *[FULL_ROW, EMPTY_ROW] * 3)
    ParquetEngine(ParquetOptions(row_group_rows=2)).write(rows, SCHEMA, sink)
    return sink.getvalue()


DATA = stored()


def test_the_footer_is_read_as_arrow_reads_it() -> None:
    footer, arrow = Footer.of(DATA, len(DATA), "x"), pq.ParquetFile(io.BytesIO(DATA)).metadata
    assert (footer.rows, len(footer.groups)) == (arrow.num_rows, arrow.num_row_groups) == (6, 3)
    assert footer.start == len(DATA) - TAIL - arrow.serialized_size
    for number, group in enumerate(footer.groups):
        for place, chunk in enumerate(group.chunks):
            theirs = arrow.row_group(number).column(place)
            assert chunk.end - chunk.start == theirs.total_compressed_size
            assert chunk.start == (theirs.dictionary_page_offset or theirs.data_page_offset)
            assert (chunk.codec, path_of(chunk.path)) == (theirs.compression, theirs.path_in_schema)
    assert [path_of(chunk.path) for chunk in footer.groups[0].chunks] == [leaf.path for leaf in leaves(SCHEMA)]


def test_a_footer_that_was_read_can_be_written() -> None:
    footer, out = Footer.of(DATA, len(DATA), "x"), bytearray()
    write_struct(out, footer.fields)
    assert bytes(out) == DATA[footer.start : -TAIL]


def test_sizes_of_plain_values() -> None:
    footer = Footer.of(DATA, len(DATA), "x")
    sizes = {path_of(chunk.path): chunk.plain_bytes for chunk in footer.groups[0].chunks}
    assert (sizes["id"], sizes["small"], sizes["flag"]) == (16, 8, 2)
    assert sizes["name"] == len(("é" * 20).encode()) + 2 * 4
    assert sizes["key"] is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a Parquet file"),
        (b"PAR1", "not a Parquet file"),
        (DATA[:-4] + b"PARE", "not a Parquet file"),
        (b"\xff\xff\xff\x7fPAR1", "cut off"),
        (bytes(50) + (50).to_bytes(4, "little") + b"PAR1", "can't be read"),
        (b"\x15" * 50 + (50).to_bytes(4, "little") + b"PAR1", "can't be read"),
    ],
)
def test_invalid_footers(data: bytes, why: str) -> None:
    with pytest.raises(MergeFailed, match=rf"a file.*{why}"):
        Footer.of(data, len(data), "a file")


def footer_of(content: bytes) -> bytes:
    return b"PAR1" + content + len(content).to_bytes(4, "little") + b"PAR1"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x19\xf7" + varint(2**50) + bytes(4), "elements"),  # a list of doubles, in a file of 24 bytes
        (b"\x49\xfc" + varint(2**60) + bytes(4), "elements"),  # of row groups
        (b"\x19\xf1" + varint(2**40), "elements"),  # of booleans
        (b"\x16" + b"\xff" * 100_000 + b"\x01\0", "64 bits"),  # a number that takes quadratic time to add up
        (b"\x16" + b"\xff" * 9 + b"\x7f\0", "64 bits"),
        (b"\x18" + b"\xff" * 11 + b"\0", "64 bits"),  # the length of a text
        (b"\x06" + varint(2**20) + b"\0\0", "number"),  # of a field
        (b"\x1c" * 200 + bytes(200), "deep"),
        (b"\x19\x19" * 200 + bytes(200), "deep"),
        (b"\x49\xfc" + varint(thrift._MOST_STRUCTS + 1) + bytes(thrift._MOST_STRUCTS + 9), "too many"),
    ],
)
def test_a_footer_that_asks_for_too_much_is_refused_at_once(content: bytes, why: str) -> None:
    data = footer_of(content)
    with pytest.raises(BadInput, match=rf"^a file is damaged.*{why}") as caught:
        Footer.of(data, len(data), "a file")
    assert caught.value.path == "a file"


def test_every_cut_and_every_changed_byte_is_read_or_refused() -> None:
    begin = len(DATA) - TAIL - length_of(DATA, "x")
    for place in range(begin, len(DATA) - TAIL, 41):
        for changed in (0, 0x1F, 0xFF):
            damaged = DATA[:place] + bytes([changed]) + DATA[place + 1 :]
            try:
                footer = Footer.of(damaged, len(damaged), "x")
            except MergeFailed:
                continue
            for chunk in footer.chunks():
                assert chunk.start <= chunk.end
                assert chunk.plain_bytes is None or isinstance(chunk.codec + path_of(chunk.path), str)
    with pytest.raises(BadThrift, match="end inside"):
        read_struct(DATA[begin : begin + 100], 0, {})
