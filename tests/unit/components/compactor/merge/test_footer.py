from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from components.compactor.merge.footer import TAIL, Footer, length_of, path_of
from components.compactor.merge.task import MergeFailed
from components.compactor.merge.thrift import BadThrift, read_struct, write_struct
from components.lake.files.parquet import ParquetEngine, ParquetOptions
from components.lake.files.statistics import leaves
from tests.lake import EMPTY_ROW, EVERYTHING, FULL_ROW, rows_of, table_schema

SCHEMA = table_schema(EVERYTHING)


def stored() -> bytes:
    sink = io.BytesIO()
    rows = rows_of(SCHEMA, *[FULL_ROW, EMPTY_ROW] * 3)
    ParquetEngine(ParquetOptions(row_group_rows=2)).write(rows, SCHEMA, sink)
    return sink.getvalue()


DATA = stored()


def test_it_says_what_arrow_says() -> None:
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


def test_what_is_read_can_be_written_back() -> None:
    footer, out = Footer.of(DATA, len(DATA), "x"), bytearray()
    write_struct(out, footer.fields)
    assert bytes(out) == DATA[footer.start : -TAIL]


def test_sizes_are_those_of_plain_values() -> None:
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
def test_what_is_no_footer(data: bytes, why: str) -> None:
    with pytest.raises(MergeFailed, match=rf"a file.*{why}"):
        Footer.of(data, len(data), "a file")


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
