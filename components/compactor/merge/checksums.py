"""Checksums of columns and rows that do not depend on the order of rows.

Each value is hashed to 64 bits, and a column's checksum is the sum of the hashes: a row that is lost, duplicated or
changed is noticed, but not two values of a column that were exchanged. Therefore there is one more sum, over whole
rows. Values are compared by bits: -0.0 is not 0.0, and NaNs differ. NULL is neither empty nor zero, also in nested
columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import ListType, MapType, NestedField, StructType

from components.compactor.merge.task import ROWS
from components.lib.lake.files.statistics import leaves
from components.lib.lake.schema.table_schema import TableSchema

Hashes: TypeAlias = npt.NDArray[np.uint64]

_BLOCK = 16_384  # rows whose hashes fit into a core's cache
_LONG = 256  # bytes: longer texts are hashed one by one
_EVERY_BIT = 2**64 - 1

_FIRST_NUMBER = 0x9E3779B97F4A7C15
_FIRST = np.uint64(_FIRST_NUMBER)
_SECOND = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_NULL = np.uint64(0x6A09E667F3BCC909)
_NULL_OUTSIDE = np.uint64(0xBB67AE8584CAA73B)  # of a struct, list or map around the value

_STEP = 16
_TWO_WORDS = np.dtype(f"V{_STEP}")
_MASKS = np.frombuffer(
    b"".join(b"\xff" * length + b"\0" * (_STEP - length) for length in range(_STEP + 1)), _TWO_WORDS
)  # by the number of bytes that count


class Checksums:
    """Checksums of a table's rows in its current schema. Text and bytes may be dictionaries."""

    def __init__(self, schema: TableSchema) -> None:
        self._fields = schema.iceberg.fields
        self._factors = {leaf.field_id: _factor(leaf.field_id) for leaf in leaves(schema)}
        self._sums: dict[int, int] = {}
        self._dictionaries: dict[int, tuple[pa.Array, Hashes]] = {}
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        for batch in table.to_batches(_BLOCK):
            self.add_batch(batch)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        whole = np.zeros(batch.num_rows, np.uint64)
        for field, column in zip(self._fields, batch.columns, strict=True):
            for field_id, hashes in self._leaves(column, field):
                hashes *= self._factors[field_id]  # odd, so a sum of products detects as much as a sum of hashes
                self._count(field_id, hashes)
                whole += hashes
        self._count(ROWS, _mix(whole))
        self.rows += batch.num_rows

    def texts(self) -> dict[int, str]:
        return {field_id: f"{total:016x}" for field_id, total in self._sums.items()}

    def _count(self, field_id: int, hashes: Hashes) -> None:
        self._sums[field_id] = (self._sums.get(field_id, 0) + int(hashes.sum())) & _EVERY_BIT

    def _leaves(self, array: pa.Array, field: NestedField) -> Iterator[tuple[int, Hashes]]:
        """Yields a hash per row for each leaf column, over all values that the row has in it."""
        match field.field_type:
            case StructType() as kind:
                for place, inner in enumerate(kind.fields):
                    for field_id, hashes in self._leaves(array.field(place), inner):
                        yield field_id, _put(_mix(hashes), array, _NULL_OUTSIDE)
            case ListType() as kind:
                yield from self._repeated(array, array.values, kind.element_field)
            case MapType() as kind:
                yield from self._repeated(array, array.keys, kind.key_field)
                yield from self._repeated(array, array.items, kind.value_field)
            case _:
                yield field.field_id, self._values(array, field.field_id)

    def _repeated(self, array: pa.Array, values: pa.Array, inner: NestedField) -> Iterator[tuple[int, Hashes]]:
        """Sums hashes of the elements and their positions, by differences of running sums, which may overflow."""
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        first, last = int(offsets[0]), int(offsets[-1])
        offsets -= first
        lengths = np.diff(offsets).astype(np.uint64)
        places = np.arange(last - first, dtype=np.uint64) - np.repeat(offsets[:-1].astype(np.uint64), np.diff(offsets))
        for field_id, hashes in self._leaves(values.slice(first, last - first), inner):
            running = np.zeros(last - first + 1, np.uint64)
            np.cumsum(_mix(hashes + places * _SECOND), out=running[1:])
            sums = running[offsets[1:]] - running[offsets[:-1]]
            yield field_id, _put(_mix(sums + lengths * _FIRST), array, _NULL_OUTSIDE)

    def _values(self, array: pa.Array, field_id: int) -> Hashes:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if not pa.types.is_dictionary(array.type):
            return _put(_hash(array), array, _NULL)
        known = self._dictionaries.get(field_id)
        if known is None or not known[0].equals(array.dictionary):
            known = self._dictionaries[field_id] = (array.dictionary, _hash(array.dictionary))
        places = array.indices.fill_null(0).to_numpy(zero_copy_only=False) if array.null_count else array.indices
        hashes = known[1] if len(known[1]) else np.zeros(1, np.uint64)
        return _put(hashes.take(np.asarray(places)), array, _NULL)


class ChunkChecksums:
    """Checksums of encoded columns: for each leaf column a sum over its chunks, and one over whole row groups, so that
    a chunk that moved to another row group is noticed.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._ids = [leaf.field_id for leaf in leaves(schema)]
        self._sums = dict.fromkeys([*self._ids, ROWS], 0)

    def add(self, chunks: Sequence[memoryview]) -> None:
        """Adds the chunks of one row group."""
        whole = 0
        for field_id, chunk in zip(self._ids, chunks, strict=True):
            number = zlib.crc32(chunk) << 32 | len(chunk) & 0xFFFFFFFF
            self._count(field_id, number)
            whole = _mix_number(whole ^ number)
        self._count(ROWS, whole)

    def texts(self) -> dict[int, str]:
        return {field_id: f"{total:016x}" for field_id, total in self._sums.items()}

    def _count(self, field_id: int, number: int) -> None:
        self._sums[field_id] = (self._sums[field_id] + _mix_number(number)) & _EVERY_BIT


def _hash(array: pa.Array) -> Hashes:
    """Hashes flat values. The hash of a null is arbitrary."""
    kind = array.type
    if pa.types.is_boolean(kind):
        bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), bitorder="little")
        return _fold(bits[array.offset : array.offset + len(array)].astype(np.uint64))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hash_bytes(array, np.int32)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _hash_bytes(array, np.int64)
    width = kind.byte_width
    if width in (4, 8):
        return _fold(_buffer(array, 1, np.uint32 if width == 4 else np.uint64, 1).astype(np.uint64, copy=False))
    if width == 16:
        halves = _buffer(array, 1, np.uint64, 2).reshape(-1, 2)
        return _mix(_mix(halves[:, 0]) ^ halves[:, 1])
    offsets = np.arange(len(array) + 1, dtype=np.int64) * width
    return _hash_texts(_buffer(array, 1, np.uint8, width), offsets)


def _hash_bytes(array: pa.Array, offset_type: Any) -> Hashes:
    count = len(array)
    if count == 0:
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(array.buffers()[1], offset_type, count + 1, array.offset * np.dtype(offset_type).itemsize)
    first, last = int(offsets[0]), int(offsets[-1])
    data = array.buffers()[2]
    content = np.frombuffer(data, np.uint8, last - first, first) if last > first else np.zeros(0, np.uint8)
    return _hash_texts(content, offsets.astype(np.int64) - first)


def _hash_texts(content: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Hashes:
    """Hashes sixteen bytes of every text at a time."""
    lengths = np.diff(offsets)
    if not len(content):
        return _mix(lengths.astype(np.uint64))
    shortest, longest = int(lengths.min()), int(lengths.max())
    if 0 < shortest == longest <= _LONG:
        return _hash_even(content, shortest)
    hashes = _mix(lengths.astype(np.uint64))
    padded = np.zeros(len(content) + _STEP, np.uint8)
    padded[: len(content)] = content
    # A view with a step at every byte, which is only indexed: nothing is copied.
    steps = np.lib.stride_tricks.as_strided(padded[:_STEP].view(_TWO_WORDS), (len(content) + 1,), (1,))
    starts, left = offsets[:-1], lengths
    going: npt.NDArray[np.int64] | None = None  # positions of texts with bytes left; None: all
    if shortest == 0 or longest > _LONG:
        going = np.flatnonzero((lengths > 0) & (lengths <= _LONG))
        starts, left = starts[going], lengths[going]
    while len(left):
        words = steps[starts].view(np.uint64).reshape(-1, 2)
        words &= _MASKS[np.minimum(left, _STEP)].view(np.uint64).reshape(-1, 2)
        if going is None:
            hashes = _step(hashes, words)
        else:
            hashes[going] = _step(hashes[going], words)
        more = np.flatnonzero(left > _STEP)
        if len(more) < len(left):
            going = more if going is None else going[more]
            starts, left = starts[more], left[more]
        starts, left = starts + _STEP, left - _STEP
    if longest > _LONG:
        for place in np.flatnonzero(lengths > _LONG):
            hashes[place] = _long(content[offsets[place] : offsets[place + 1]].data)
    return hashes


def _hash_even(content: npt.NDArray[np.uint8], length: int) -> Hashes:
    """Hashes texts that all have the same length, as keys and digests do: nothing has to be gathered."""
    count = len(content) // length
    width = -(-length // _STEP) * _STEP
    if width == length:
        words = np.frombuffer(content, np.uint64)
    else:
        padded = np.zeros((count, width), np.uint8)
        padded[:, :length] = content.reshape(count, length)
        words = padded.reshape(-1).view(np.uint64)
    words = words.reshape(count, -1)
    hashes = np.repeat(_mix(np.array([length], np.uint64)), count)
    for place in range(0, words.shape[1], 2):
        hashes = _step(hashes, words[:, place : place + 2])
    return hashes


def _step(hashes: Hashes, words: Hashes) -> Hashes:
    """Adds the next sixteen bytes of each text to its hash."""
    combined = words[:, 1] * _SECOND
    combined ^= hashes
    combined ^= words[:, 0]
    return _mix(combined)


def _long(text: memoryview) -> np.uint64:
    """Combines two different sums over all bytes, and the length."""
    number = zlib.crc32(text) << 32 | zlib.adler32(text, len(text) & 0xFFFF)
    return np.uint64(_mix(np.array([number], np.uint64))[0])


def _buffer(array: pa.Array, number: int, kind: Any, many: int) -> npt.NDArray[Any]:
    """Returns the array's part of one of its buffers, ``many`` numbers per value."""
    size = np.dtype(kind).itemsize * many
    if len(array) == 0:
        return np.zeros(0, kind)
    return np.frombuffer(array.buffers()[number], kind, len(array) * many, array.offset * size)


def _mix(values: npt.NDArray[np.uint64]) -> Hashes:
    """Maps distinct values to distinct ones. 0 stays 0, which a sum does not notice; therefore rows are counted."""
    mixed = values * _FIRST
    high = mixed >> _SHIFT
    mixed ^= high
    mixed *= _SECOND
    np.right_shift(mixed, _SHIFT, out=high)
    mixed ^= high
    return mixed


def _fold(values: npt.NDArray[np.uint64]) -> Hashes:
    """Like `_mix`, in half the time, for values that are only summed."""
    folded = values * _FIRST
    folded ^= folded >> _SHIFT
    return folded


def _put(hashes: Hashes, array: pa.Array, null: np.uint64) -> Hashes:
    if array.null_count:
        hashes = hashes if hashes.flags.writeable else hashes.copy()
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = null
    return hashes


def _factor(field_id: int) -> np.uint64:
    """Returns an odd number per column, so that values in the wrong column are noticed."""
    return np.uint64(int(_mix(np.array([field_id], np.uint64))[0]) | 1)


def _mix_number(number: int) -> int:
    number = number * _FIRST_NUMBER & _EVERY_BIT
    return (number ^ number >> 29) * _FIRST_NUMBER & _EVERY_BIT
