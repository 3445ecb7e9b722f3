"""A Parquet footer, read without Arrow: what a copy has to rewrite, and what Arrow does not tell.

Numbers of fields are those of parquet-format's `parquet.thrift`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from components.compactor.merge.task import MergeFailed
from components.compactor.merge.thrift import STRUCT, BadThrift, Fields, read_struct, read_texts

MAGIC = b"PAR1"
TAIL = 8  # the footer's length and the magic number

# FileMetaData
VERSION, SCHEMA, NUM_ROWS, ROW_GROUPS, KEY_VALUES, CREATED_BY, COLUMN_ORDERS = range(1, 8)
# RowGroup
COLUMNS, TOTAL_BYTES, GROUP_ROWS, SORTING, GROUP_OFFSET, GROUP_COMPRESSED, ORDINAL = range(1, 8)
# ColumnChunk
FILE_PATH, CHUNK_OFFSET, METADATA, OFFSET_INDEX, _, COLUMN_INDEX, _, CRYPTO, ENCRYPTED = range(1, 10)
INDEXES = range(OFFSET_INDEX, CRYPTO)
# ColumnMetaData
TYPE, ENCODINGS, PATH, CODEC, VALUES, UNCOMPRESSED, COMPRESSED, _, DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE = range(1, 12)
STATISTICS, _, BLOOM_OFFSET, BLOOM_LENGTH, SIZES = range(12, 17)

_SHAPE = {ROW_GROUPS: {COLUMNS: {METADATA: {SIZES: None}}}}
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # boolean, int32, int64, int96, float, double
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_TEXT = 6


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group."""

    fields: Fields

    def number(self, field: int) -> int:
        kind_and_value = self.fields.get(field)
        return 0 if kind_and_value is None else int(kind_and_value[1])

    @property
    def start(self) -> int:
        """A dictionary comes before the data."""
        dictionary, data = self.number(DICTIONARY_PAGE), self.number(DATA_PAGE)
        return min(dictionary, data) if dictionary else data

    @property
    def end(self) -> int:
        return self.start + self.number(COMPRESSED)

    @property
    def path(self) -> bytes:
        """As it is encoded: to compare, and for `path_of`."""
        value: bytes = self.fields[PATH][1]
        return value

    @property
    def codec(self) -> str:
        number = self.number(CODEC)
        return _CODECS[number] if number < len(_CODECS) else f"codec {number}"

    @property
    def plain_bytes(self) -> int | None:
        """What its values take without dictionary and compression; None if the writer did not say."""
        width = _WIDTHS.get(self.number(TYPE))
        if width is not None:
            return width * self.number(VALUES)
        sizes = self.fields.get(SIZES)
        if self.number(TYPE) != _TEXT or sizes is None or 1 not in sizes[1]:
            return None
        return int(sizes[1][1][1]) + 4 * self.number(VALUES)


@dataclass(frozen=True, slots=True)
class Footer:
    fields: Fields
    start: int  # in its file

    @classmethod
    def of(cls, tail: bytes, size: int, path: str) -> Footer:
        """From the last bytes of a file of ``size`` bytes."""
        length = length_of(tail, path)
        if length + TAIL > len(tail):
            raise MergeFailed(f"{path} is damaged: its footer is said to have {length:,} bytes, and is cut off")
        begin = len(tail) - TAIL - length
        try:
            found = cls(read_struct(tail[begin:-TAIL], 0, _SHAPE)[0], size - TAIL - length)
            found._check()
        except (BadThrift, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise MergeFailed(f"{path} is damaged: its footer can't be read: {error!r}") from error
        return found

    def _check(self) -> None:
        """That everything is there, and of the type, that is going to be asked for."""
        rows = sum(int(group[GROUP_ROWS][1]) for group in self.groups)
        if rows != self.rows:
            raise BadThrift(f"{rows:,} rows in row groups, {self.rows:,} in all")
        for chunk in self.chunks():
            if chunk.start < 0 or chunk.end < chunk.start or not isinstance(chunk.path, bytes):
                raise BadThrift("a column is nowhere")

    @property
    def rows(self) -> int:
        return int(self.fields[NUM_ROWS][1])

    @property
    def groups(self) -> list[Fields]:
        found: list[Fields] = self.fields[ROW_GROUPS][1] if ROW_GROUPS in self.fields else []
        return found

    def raw(self, field: int) -> Any:
        """The bytes of a field that is not looked into; None if there is none."""
        kind_and_value = self.fields.get(field)
        return None if kind_and_value is None else kind_and_value[1]

    def chunks(self) -> Iterator[Chunk]:
        for group in self.groups:
            yield from chunks_of(group)


def chunks_of(group: Fields) -> Iterator[Chunk]:
    for column in group[COLUMNS][1]:
        yield Chunk(column[METADATA][1] if METADATA in column else {PATH: (STRUCT, b"")})


def length_of(tail: bytes, path: str) -> int:
    if len(tail) < TAIL or tail[-4:] != MAGIC:
        raise MergeFailed(f"{path} is not a Parquet file: it does not end with {MAGIC.decode()}")
    return int.from_bytes(tail[-TAIL:-4], "little")


def path_of(encoded: bytes) -> str:
    """Of a list of texts, joined by dots as Arrow does."""
    try:
        return ".".join(text.decode() for text in read_texts(encoded))
    except (IndexError, UnicodeDecodeError):
        return ""
