"""Position deletes: the rows of a group's files that other engines have deleted, read from their delete files.

A delete file names rows by the path of their file and their position in it. The merge leaves these rows out, so that a
delete file is no longer needed once all files that it names were merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.compactor.merge.task import DeleteInput, MergeFailed, MergeInput
from components.lib.lake.storage.objects import ObjectMissing, Objects

_PATH, _POSITION = "file_path", "pos"
_BYTES_PER_ROW = 24  # the decoded columns, and the positions of one file
_MOST_OTHERS = 1_000  # paths per delete file

Positions = npt.NDArray[np.int64]


class PositionDeletes:
    """The deleted positions of each input. `others` has, by delete file, the paths that are not among the inputs; None
    if there are too many.
    """

    def __init__(self, inputs: Sequence[MergeInput]) -> None:
        self._rows = {file.path: file.rows for file in inputs}
        self._positions: dict[str, Positions] = {}
        self.others: dict[str, tuple[str, ...] | None] = {}

    async def load(self, files: Sequence[DeleteInput], objects: Objects, memory_bytes: int) -> None:
        """Raises `MergeFailed` if a delete file can't be read: without it, deleted rows would come back."""
        need = sum(file.size + _BYTES_PER_ROW * file.rows for file in files)
        if need > memory_bytes // 2:
            raise MemoryError(
                f"{len(files)} delete files need about {need >> 20:,} MiB, and a task may hold {memory_bytes >> 20:,}"
            )
        for file in files:
            self._add(file, await _fetch(file, objects))

    def of(self, path: str) -> Positions | None:
        """Returns the deleted positions of an input, sorted, or None."""
        return self._positions.get(path)

    @property
    def rows(self) -> int:
        """The number of rows of the inputs that are deleted."""
        return sum(map(len, self._positions.values()))

    def _add(self, file: DeleteInput, data: bytes) -> None:
        paths, places = _read(file, data)
        others: list[str] = []
        for number, path in enumerate(paths.dictionary.to_pylist()):
            if path not in self._rows:
                others.append(path)
                continue
            found = places[np.asarray(paths.indices) == number]
            if len(found) and not 0 <= int(found.min()) <= int(found.max()) < self._rows[path]:
                raise MergeFailed(f"the delete file {file.path} names a row that {path} does not have")
            known = self._positions.get(path)
            self._positions[path] = np.unique(found if known is None else np.concatenate((known, found)))
        self.others[file.path] = tuple(others) if len(others) <= _MOST_OTHERS else None


def without(table: pa.Table, start: int, deleted: Positions | None) -> pa.Table:
    """Returns the rows that are not deleted. ``start`` is the position of the first row in its file."""
    if deleted is None:
        return table
    first, last = np.searchsorted(deleted, (start, start + table.num_rows))
    if first == last:
        return table
    kept = np.ones(table.num_rows, np.bool_)
    kept[deleted[first:last] - start] = False
    return table.filter(pa.array(kept))


async def _fetch(file: DeleteInput, objects: Objects) -> bytes:
    try:
        data = await objects.get(file.path)
    except ObjectMissing as error:
        raise MergeFailed(
            f"the delete file {file.path} does not exist, so that rows which were deleted would come back: restore it"
        ) from error
    if len(data) != file.size:
        raise MergeFailed(
            f"the delete file {file.path} has {len(data):,} bytes where the registry says {file.size:,}: restore it"
        )
    return data


def _read(file: DeleteInput, data: bytes) -> tuple[pa.DictionaryArray, Positions]:
    try:
        source = pq.ParquetFile(pa.BufferReader(data), read_dictionary=[_PATH], pre_buffer=False)
        table = source.read(columns=[_PATH, _POSITION], use_threads=False)
        table.validate(full=True)
        paths = table.unify_dictionaries()[_PATH].combine_chunks()
        if not pa.types.is_dictionary(paths.type):
            paths = pc.dictionary_encode(paths)
        places = table[_POSITION].cast(pa.int64()).to_numpy()
        if paths.null_count or table[_POSITION].null_count:
            raise ValueError("it has nulls")
    except (pa.ArrowException, ValueError, KeyError, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        raise MergeFailed(f"the delete file {file.path} can't be read: {error}") from error
    if table.num_rows != file.rows:
        raise MergeFailed(f"the delete file {file.path} has {table.num_rows:,} rows, the registry says {file.rows:,}")
    return paths, places
