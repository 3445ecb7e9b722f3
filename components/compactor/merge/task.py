"""The contract between who plans a group and who merges it. Everything here can be pickled."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from astha.errors import AsthaError
from astha.subscribers.surroundings import LakeSettings
from registry.documents import Document
from registry.drafts import FileDraft
from registry.models import TableFile, TableMetadata

Strategy: TypeAlias = Literal["auto", "copy", "binpack", "sort", "zorder"]
"""A table with `sort_by` is sorted whatever is asked for, or z-ordered by the same columns. Of others, ``auto`` and
``copy`` copy row groups where that can be done and pack rows otherwise; the result says why.
"""

ROWS = 0
"""Key of the checksum over whole rows, beside those of the leaf columns: no field has this id."""


class MergeFailed(AsthaError):
    """These inputs can't be merged, now or later: the message names the file or column. Not to be tried again."""


class MergeInput(msgspec.Struct, frozen=True):
    path: str
    size: int
    rows: int
    schema_version: int
    column_stats: Document | None = None  # as the file's row has them
    checksum: str | None = None

    @classmethod
    def of(cls, file: TableFile) -> MergeInput:
        return cls(
            file.file_path, file.file_size, file.row_count, file.schema_version, file.column_stats, file.checksum
        )


class MergeTask(msgspec.Struct, frozen=True, kw_only=True):
    operation_id: str
    table: str  # its full name, for messages
    partition_path: str
    inputs: tuple[MergeInput, ...]
    outputs: tuple[str, ...]  # URIs under intents, as many as may be written; not all need be used
    versions: tuple[TableMetadata, ...]  # the current one first, then the older ones that the inputs name
    strategy: Strategy = "auto"
    target_bytes: int = 128 << 20
    copy_above_bytes: int = 256 << 10  # row groups that are smaller on the average are not copied
    memory_bytes: int = 1 << 30  # what the task may hold
    lake: LakeSettings = LakeSettings()


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Who swaps compares rows and checksums once more: `proven`."""

    files: list[FileDraft]
    rows_in: int
    rows_out: int
    checksums_in: dict[int, str]  # field id of a leaf column, or `ROWS`
    checksums_out: dict[int, str]
    bytes_read: int
    bytes_written: int
    strategy: Strategy  # the one that was used, never auto
    why: str  # in a sentence
    seconds: dict[str, float]  # by phase: read, sort, encode, write, verify

    @property
    def proven(self) -> bool:
        return self.rows_in == self.rows_out and self.checksums_in == self.checksums_out
