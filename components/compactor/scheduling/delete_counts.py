"""Delete files of other engines by partition, and why a partition that has some may not be compacted.

A delete file applies to data files that are older than it. A merge writes new data files, so it must leave out the rows
that are deleted, or they come back. Position deletes in Parquet are applied; a partition with any other kind is never
compacted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from registry.models import TableDeleteFile

WHOLE_TABLE = ""
"""The partition path of delete files that apply to all partitions, and of those of unpartitioned tables."""

_APPLIED_TYPE = "parquet"
_Key: TypeAlias = tuple[int, str]


def why_not_applied(file: TableDeleteFile) -> str | None:
    """Returns the reason without the file's name: it is the same for all files of a kind."""
    if file.content == "equality":
        return (
            "the partition has equality delete files, which can't be applied here: let the engine that wrote them "
            "rewrite the data files"
        )
    if file.file_type != _APPLIED_TYPE or file.content_offset:
        kind = "deletion vectors (Iceberg v3)" if file.file_type == "puffin" else f"delete files in {file.file_type}"
        return f"the partition has {kind}, which can't be applied here: let the engine rewrite the data files"
    return None


def first_reason(files: Iterable[TableDeleteFile]) -> str | None:
    """Returns why the delete files can't be applied; the same reason whatever the order of the files."""
    return min((reason for file in files if (reason := why_not_applied(file)) is not None), default=None)


class DeleteTotals(msgspec.Struct, frozen=True, gc=False):
    files: int = 0
    rows: int = 0  # deleted by position; a row that two files delete counts twice
    reason: str | None = None  # why they can't be applied

    def share_of(self, rows: int) -> float:
        """Returns the share of deleted rows."""
        return min(1.0, self.rows / rows) if rows > 0 else 0.0


_NONE = DeleteTotals()


class DeleteCounts:
    """Delete files are few compared with data files, so each is kept, by its id."""

    def __init__(self) -> None:
        self._known: dict[int, dict[str, dict[int, tuple[int, str | None]]]] = {}
        self._spent: dict[_Key, frozenset[int]] = {}

    def paths(self, table_id: int) -> list[str]:
        return list(self._known.get(table_id, ()))

    def count(self, file: TableDeleteFile, sign: int = 1) -> _Key:
        partitions = self._known.setdefault(file.table_id, {})
        files = partitions.setdefault(file.partition_path, {})
        if sign > 0:
            files[file.id] = (file.row_count, why_not_applied(file))
        else:
            files.pop(file.id, None)
        if not files:
            del partitions[file.partition_path]
            self._spent.pop((file.table_id, file.partition_path), None)
            if not partitions:
                del self._known[file.table_id]
        return file.table_id, file.partition_path

    def of(self, key: _Key) -> DeleteTotals:
        """Returns the totals of the delete files that apply to a partition, without those that were applied."""
        table_id, path = key
        partitions = self._known.get(table_id)
        if partitions is None:
            return _NONE
        found = dict(partitions.get(path, {}))
        if path != WHOLE_TABLE:
            found |= partitions.get(WHOLE_TABLE, {})
        spent = self._spent.get(key, frozenset())
        reasons = [reason for _, reason in found.values() if reason is not None]
        rows = sum(rows for number, (rows, reason) in found.items() if reason is None and number not in spent)
        return DeleteTotals(len(found), rows, min(reasons, default=None))

    def ids(self, key: _Key) -> frozenset[int]:
        partitions = self._known.get(key[0], {})
        return frozenset(partitions.get(key[1], {})) | frozenset(partitions.get(WHOLE_TABLE, {}))

    def spend(self, key: _Key, ids: frozenset[int]) -> None:
        """These were applied to all files of the partition. Those that are still there no longer cause a compaction: a
        file that could not be merged may need them.
        """
        left = ids & self.ids(key)
        if left:
            self._spent[key] = self._spent.get(key, frozenset()) | left

    def forget(self, table_id: int) -> None:
        self._known.pop(table_id, None)
        for key in [key for key in self._spent if key[0] == table_id]:
            del self._spent[key]
