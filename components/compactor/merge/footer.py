"""A Parquet footer, read without Arrow: what a copy has to rewrite, and what Arrow does not tell.

Numbers of fields are those of parquet-format's `parquet.thrift`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from components.compactor.merge.task import BadInput
from components.compactor.merge.thrift import I64, STRUCT, BadThrift, Fields, read_struct, read_texts
from components.lib.parquet_tail import TAIL, footer_length

# FileMetaData
VERSION, SCHEMA, NUM_ROWS, ROW_GROUPS, KEY_VALUES, CREATED_BY, COLUMN_ORDERS = range(1, 8)
# RowGroup
COLUMNS, TOTAL_BYTES, GROUP_ROWS, SORTING, GROUP_OFFSET, GROUP_COMPRESSED, ORDINAL = range(1, 8)
# ColumnChunk
FILE_PATH, CHUNK_OFFSET, METADATA, _, _, _, _, CRYPTO, ENCRYPTED = range(1, 10)
# ColumnMetaData
TYPE, ENCODINGS, PATH, CODEC, VALUES, UNCOMPRESSED, COMPRESSED, _, DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE = range(1, 12)
STATISTICS, _, BLOOM_OFFSET, BLOOM_LENGTH, SIZES = range(12, 17)

_SHAPE = {ROW_GROUPS: {COLUMNS: {METADATA: {SIZES: None}}}}
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # boolean, int32, int64, int96, float, double
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_TEXT = 6
_GROUP_NUMBERS = (TOTAL_BYTES, GROUP_ROWS, GROUP_OFFSET, GROUP_COMPRESSED)
_ABSENT = (I64, 0)


class ColumnChunk:
    """A column of a row group."""

    __slots__ = ("end", "fields", "start")

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        dictionary, data = self.number(DICTIONARY_PAGE), self.number(DATA_PAGE)
        self.start = min(dictionary, data) if dictionary else data  # a dictionary comes before the data
        self.end = self.start + self.number(COMPRESSED)

    def number(self, field: int) -> int:
        found = self.fields.get(field)
        return 0 if found is None else int(found[1])

    @property
    def path(self) -> bytes:
        """The encoded path, to compare and for `path_of`."""
        value: bytes = self.fields[PATH][1]
        return value

    @property
    def codec(self) -> str:
        number = self.number(CODEC)
        return _CODECS[number] if 0 <= number < len(_CODECS) else f"codec {number}"

    @property
    def plain_bytes(self) -> int | None:
        """The size of its values without dictionary and compression; None if the writer did not record it."""
        width = _WIDTHS.get(self.number(TYPE))
        if width is not None:
            return width * self.number(VALUES)
        sizes = self.fields.get(SIZES, (STRUCT, {}))[1]
        text = sizes.get(1, (I64, None))[1] if isinstance(sizes, dict) else None
        return text + 4 * self.number(VALUES) if self.number(TYPE) == _TEXT and isinstance(text, int) else None


@dataclass(frozen=True, slots=True)
class Group:
    """A row group."""

    fields: Fields
    chunks: list[ColumnChunk]

    @property
    def rows(self) -> int:
        return int(self.fields[GROUP_ROWS][1])


@dataclass(frozen=True, slots=True)
class Footer:
    fields: Fields
    groups: list[Group]
    start: int  # in its file

    @classmethod
    def of(cls, tail: bytes, size: int, path: str) -> Footer:
        """From the last bytes of a file of ``size`` bytes. BadInput if they are no footer."""
        length = length_of(tail, path)
        if length + TAIL > len(tail):
            raise BadInput(path, f"is damaged: its footer is said to have {length:,} bytes, and is cut off")
        begin = len(tail) - TAIL - length
        try:
            fields, _ = read_struct(tail[begin:-TAIL], 0, _SHAPE)
            groups = [_group(group) for group in (fields[ROW_GROUPS][1] if ROW_GROUPS in fields else [])]
            found = cls(fields, groups, size - TAIL - length)
            if sum(group.rows for group in groups) != found.rows:
                raise BadThrift("its row groups have not as many rows as it says")
        except MemoryError:
            raise
        except Exception as error:
            raise BadInput(path, f"is damaged: its footer can't be read: {error!r}") from error
        return found

    @property
    def rows(self) -> int:
        return int(self.fields[NUM_ROWS][1])

    def raw(self, field: int) -> bytes:
        """A field that is not looked into; empty if there is none."""
        found = self.fields.get(field)
        return found[1] if found is not None and isinstance(found[1], bytes) else b""

    def chunks(self) -> Iterator[ColumnChunk]:
        for group in self.groups:
            yield from group.chunks


def _group(fields: Fields) -> Group:
    """A column's metadata may be elsewhere, or encrypted."""
    columns: list[Fields] = fields[COLUMNS][1]
    chunks = [ColumnChunk(column[METADATA][1]) for column in columns if METADATA in column]
    for chunk in chunks:
        found = chunk.fields
        if chunk.start < 0 or chunk.end < chunk.start or not isinstance(chunk.path, bytes):
            raise BadThrift("a column is nowhere")
        # A sum, because what is not a number can't be added to one: quicker than to look at each one's type.
        0 + found[TYPE][1] + found[CODEC][1] + found[DATA_PAGE][1] + found.get(INDEX_PAGE, _ABSENT)[1]
        if found[VALUES][1] < 0 or found[UNCOMPRESSED][1] < 0:
            raise BadThrift("a column has fewer than no values or bytes")
    others = [fields[field][1] for field in _GROUP_NUMBERS if field in fields]
    sum(others, sum(column.get(CHUNK_OFFSET, _ABSENT)[1] for column in columns))
    if fields[GROUP_ROWS][1] < 0:
        raise BadThrift("a row group has fewer than no rows")
    return Group(fields, chunks)


def length_of(tail: bytes, path: str) -> int:
    try:
        return footer_length(tail)
    except ValueError as error:
        raise BadInput(path, f"is {error}") from error


def path_of(encoded: bytes) -> str:
    """Decodes a path and joins it by dots, as Arrow does."""
    try:
        return ".".join(text.decode() for text in read_texts(encoded))
    except (BadThrift, UnicodeDecodeError):
        return ""
