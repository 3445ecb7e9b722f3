"""Copies row groups without decoding values. Only the footer is written new.

For files whose footers agree in everything that concerns the whole file. Page indexes and bloom filters are not copied:
they are hints, and contain offsets that would have to be changed.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from components.compactor.merge.checksums import ChunkChecksums
from components.compactor.merge.footer import (
    BLOOM_LENGTH,
    BLOOM_OFFSET,
    CHUNK_OFFSET,
    COLUMN_ORDERS,
    COLUMNS,
    CREATED_BY,
    CRYPTO,
    DATA_PAGE,
    DICTIONARY_PAGE,
    ENCRYPTED,
    FILE_PATH,
    GROUP_OFFSET,
    INDEX_PAGE,
    KEY_VALUES,
    METADATA,
    NUM_ROWS,
    ORDINAL,
    ROW_GROUPS,
    SCHEMA,
    STATISTICS,
    ColumnChunk,
    Footer,
    Group,
)
from components.compactor.merge.inputs import Inputs
from components.compactor.merge.task import MergeFailed, MergeInput, reading
from components.compactor.merge.thrift import I16, I64, LIST, STRUCT, Fields, write_struct
from components.lib.lake.files import WrittenFile
from components.lib.lake.files.parquet import ParquetEngine
from components.lib.lake.files.statistics import Leaf, count_nan, leaves, parquet_statistics
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.objects import Objects
from components.lib.lake.storage.output_streams import ChecksummedSink, Sink
from components.lib.parquet_tail import MAGIC
from registry.inputs import FileDraft
from registry.json_text import JsonText, parse_json_as
from registry.models import ColumnStats

_WRITER = b"parquet-cpp-arrow version "
"""Files of other writers are decoded: the meaning of their offsets and statistics depends on their versions."""

_HIGHEST_ORDINAL = 2**15 - 1
_NOWHERE = (I64, 0)
_READ_AT_ONCE = 4 << 20
_FIRST_BYTE = len(MAGIC)


def why_not(inputs: Inputs, schema: TableSchema, engine: ParquetEngine, smallest_bytes: int) -> str | None:
    """Returns why the files can't be copied, or None if they can."""
    model = _model(schema, engine)
    groups = size = 0
    for file, footer in zip(inputs.files, inputs.footers, strict=True):
        with reading(file.path):
            problem = _differs(footer, model) or _unfit(footer, engine.codec)
        if problem is not None:
            return f"{file.path} {problem}"
        groups += len(footer.groups)
        size += footer.start - _FIRST_BYTE
    if groups and size // groups < smallest_bytes:
        return f"row groups of {size // groups:,} bytes on average are smaller than {smallest_bytes:,}"
    return None


def why_not_copy(footer: Footer, schema: TableSchema, engine: ParquetEngine) -> str | None:
    """Returns why this file can't be copied, or None if it can."""
    return _differs(footer, _model(schema, engine)) or _unfit(footer, engine.codec)


def read_copied_statistics(footer: Footer, schema: TableSchema, path: str) -> None:
    """Reads the statistics that a copy of this file alone would have. Raises `BadInput` if they are invalid."""
    columns = leaves(schema)
    with reading(path):
        alone = _ending(footer, [_moved(group, _FIRST_BYTE, 0) for group in footer.groups], footer.rows)
        nans = {leaf.field_id: 0 for leaf in columns if leaf.floating}
        parquet_statistics(pq.read_metadata(io.BytesIO(MAGIC + alone)), columns, nans)


class RowGroupCopy:
    """Writes one new file from the inputs at ``places``. ``sums`` gets the checksums of what is read."""

    def __init__(self, inputs: Inputs, places: Sequence[int], schema: TableSchema, sums: ChunkChecksums) -> None:
        self._inputs = inputs
        self._places = places
        self._schema = schema
        self._leaves = leaves(schema)
        self._sums = sums
        self._ending = b""

    def fill(self, sink: Sink) -> WrittenFile:
        tally = ChecksummedSink(sink)
        tally.write(MAGIC)
        nans = {leaf.field_id: 0 for leaf in self._leaves if leaf.floating}
        groups: list[Fields] = []
        rows = 0
        for place in self._places:
            data = memoryview(self._inputs.take(place))
            file, footer = self._inputs.files[place], self._inputs.footers[place]
            for group in footer.groups:
                with reading(file.path):
                    self._sums.add([data[chunk.start : chunk.end] for chunk in group.chunks])
                    groups.append(_moved(group, tally.size, len(groups)))
                    runs = list(_runs(group.chunks))
                for start, end in runs:
                    tally.write(data[start:end])  # type: ignore[arg-type]  # as good as bytes
            rows += footer.rows
            if nans:
                with reading(file.path):
                    counted = _nans(file, data, self._leaves)
                for field_id, count in counted.items():
                    nans[field_id] += count
        self._ending = _ending(self._inputs.footers[self._places[0]], groups, rows)
        tally.write(self._ending)
        return WrittenFile(tally.size, rows, tally.checksum, self._statistics(self._ending, nans))

    def _statistics(self, ending: bytes, nans: Mapping[int, int]) -> JsonText:
        """Reads the statistics of the combined footer. If they are invalid, finds the input whose fault it is."""
        try:
            return parquet_statistics(pq.read_metadata(io.BytesIO(MAGIC + ending)), self._leaves, nans)
        except MemoryError:
            raise
        except Exception as error:
            for place in self._places:
                read_copied_statistics(self._inputs.footers[place], self._schema, self._inputs.files[place].path)
            raise MergeFailed(f"the footers of {len(self._places)} files can't be put together: {error!r}") from error

    async def read_back(self, objects: Objects, file: FileDraft, into: ChunkChecksums) -> int:
        """Adds the checksums of what is stored, located by its own footer as Arrow reads it. Returns its rows."""
        length = len(self._ending)
        tail = await objects.get_range(file.file_path, file.file_size - length, length)
        head = await objects.get_range(file.file_path, 0, _FIRST_BYTE)
        if (head, tail) != (MAGIC, self._ending):
            raise MergeFailed(f"{file.file_path} was not stored as it was written: check the storage")
        footer = pq.read_metadata(io.BytesIO(MAGIC + tail))
        groups = [_extents(footer.row_group(number)) for number in range(footer.num_row_groups)]
        first = 0
        while first < len(groups):
            start = groups[first][0][0]
            last = first + 1
            while last < len(groups) and groups[last][-1][1] - start <= _READ_AT_ONCE:
                last += 1
            data = memoryview(await objects.get_range(file.file_path, start, groups[last - 1][-1][1] - start))
            for extents in groups[first:last]:
                into.add([data[begin - start : end - start] for begin, end in extents])
            first = last
        return int(footer.num_rows)


def _extents(group: pq.RowGroupMetaData) -> list[tuple[int, int]]:
    """Returns start and end of each column."""
    found = []
    for number in range(group.num_columns):
        chunk = group.column(number)
        dictionary, start = chunk.dictionary_page_offset, chunk.data_page_offset
        start = start if dictionary is None else min(start, dictionary)
        found.append((start, start + chunk.total_compressed_size))
    return found


def _model(schema: TableSchema, engine: ParquetEngine) -> Footer:
    """Returns the footer of an empty file that the engine writes now."""
    sink = io.BytesIO()
    with engine.open(schema, sink):
        pass
    return Footer.of(sink.getvalue(), sink.tell(), "a new file")


def _differs(footer: Footer, model: Footer) -> str | None:
    if not footer.raw(CREATED_BY)[1:].startswith(_WRITER):
        return "was written by another program"
    if footer.raw(SCHEMA) != model.raw(SCHEMA):
        return "has other columns or types than the table has now"
    if any(footer.raw(field) != model.raw(field) for field in (KEY_VALUES, COLUMN_ORDERS)):
        return "has other properties in its footer than a new file"
    if set(footer.fields) - set(model.fields):
        return "is encrypted, or has a footer that is not understood"
    return None


def _unfit(footer: Footer, codec: str) -> str | None:
    for group in footer.groups:
        for column in group.fields[COLUMNS][1]:
            if METADATA not in column or FILE_PATH in column or CRYPTO in column or ENCRYPTED in column:
                return "has columns that are encrypted or elsewhere"
        for chunk in group.chunks:
            if chunk.codec != codec:
                return f"is compressed with {chunk.codec}, and the table with {codec}"
            if chunk.start < _FIRST_BYTE or chunk.end > footer.start:
                return "has columns outside of itself"
            if STATISTICS not in chunk.fields:
                return "has columns without statistics"
    return None


def _moved(group: Group, start: int, number: int) -> Fields:
    """Returns the row group with its chunks, one after the other, at ``start``."""
    columns: list[Fields] = []
    begin = start
    for column, chunk in zip(group.fields[COLUMNS][1], group.chunks, strict=True):
        shift = begin - chunk.start
        begin += chunk.end - chunk.start
        moved = dict(chunk.fields)
        for field in (DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE):
            if moved.get(field, _NOWHERE)[1]:
                moved[field] = (I64, moved[field][1] + shift)
        for field in (BLOOM_OFFSET, BLOOM_LENGTH):
            moved.pop(field, None)
        offset = column.get(CHUNK_OFFSET, _NOWHERE)[1]  # newer writers leave it at 0
        columns.append({CHUNK_OFFSET: (I64, offset and offset + shift), METADATA: (STRUCT, moved)})
    found = {**group.fields, COLUMNS: (LIST, columns)}
    if GROUP_OFFSET in found:
        found[GROUP_OFFSET] = (I64, start)
    found.pop(ORDINAL, None)
    if number <= _HIGHEST_ORDINAL:
        found[ORDINAL] = (I16, number)
    return found


def _runs(chunks: Sequence[ColumnChunk]) -> Iterator[tuple[int, int]]:
    """Yields ranges of adjacent chunks, which usually is one range."""
    start, end = chunks[0].start, chunks[0].start
    for chunk in chunks:
        if chunk.start != end:
            yield start, end
            start = chunk.start
        end = chunk.end
    yield start, end


def _ending(model: Footer, groups: list[Fields], rows: int) -> bytes:
    out = bytearray()
    write_struct(out, {**model.fields, NUM_ROWS: (I64, rows), ROW_GROUPS: (LIST, groups)})
    out += struct.pack("<I", len(out))
    return bytes(out) + MAGIC


def _nans(file: MergeInput, data: memoryview, columns: Sequence[Leaf]) -> Mapping[int, int]:
    """Returns the counts of the file's row; counts them if it has none."""
    floating = [leaf for leaf in columns if leaf.floating]
    known = parse_json_as(file.column_stats, dict[int, ColumnStats]) if file.column_stats is not None else {}
    found = {leaf.field_id: known[leaf.field_id].nan_count for leaf in floating if leaf.field_id in known}
    missing = [leaf for leaf in floating if found.get(leaf.field_id) is None]
    counted = dict(_counted(data, missing)) if missing else {}
    return {field_id: count for field_id, count in {**found, **counted}.items() if count is not None}


def _counted(data: memoryview, columns: Sequence[Leaf]) -> Iterator[tuple[int, int]]:
    source = pq.ParquetFile(pa.BufferReader(data))
    rows = source.read(columns=list(dict.fromkeys(leaf.steps[0] for leaf in columns)), use_threads=False)
    for leaf in columns:
        yield leaf.field_id, count_nan(rows, leaf)
