"""The contract between who plans a group and who merges it. Everything here can be pickled."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

import msgspec

from astha.errors import AsthaError
from astha.subscribers.context import LakeSettings
from components.lib.lake.storage.objects import StorageError
from registry.inputs import FileDraft
from registry.json_text import JsonText
from registry.models import TableFile, TableMetadata

Strategy: TypeAlias = Literal["auto", "copy", "binpack", "sort", "zorder"]
"""A table with `sort_by` is sorted whatever is asked for, or z-ordered by the same columns. Of others, ``auto`` and
``copy`` copy row groups where that can be done and pack rows otherwise; the result says why.
"""

_LONGEST_REASON = 500  # of a damaged file's bytes some may stand in it

ROWS = 0
"""Key of the checksum over whole rows, beside those of the leaf columns: no field has this id."""


class MergeFailed(AsthaError):
    """These inputs can't be merged, now or later: the message names the file or column. Not to be tried again."""


class BadInput(MergeFailed):
    """One file is at fault: it is damaged, is not what its row says, or does not fit its table. ``path`` names it; the
    files beside it can be merged without it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[BadInput], tuple[str, str]]:  # it comes from a worker
        return type(self), (self.path, self.reason)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Whatever reading a file raises, whoever raises it, becomes `BadInput`. MemoryError and errors of the storage, of
    which the file is innocent, pass as they are.
    """
    try:
        yield
    except (MergeFailed, StorageError, MemoryError):  # a MemoryError of Arrow's is an ArrowException, too
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise
        raise BadInput(path, f"can't be read: {error}") from error
    except Exception as error:
        raise BadInput(path, f"can't be read: {_said(error)}") from error


def _said(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


class MergeInput(msgspec.Struct, frozen=True):
    path: str
    size: int
    rows: int
    schema_version: int
    column_stats: JsonText | None = None  # as the file's row has them
    checksum: str | None = None

    @property
    def has_checksum(self) -> bool:
        """Whether its bytes can be compared with those that were registered."""
        return self.checksum is not None and self.checksum.startswith("sha256:")

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
    strategy_why: str = "the strategy was asked for"  # what chose it
    target_bytes: int = 128 << 20
    # Row groups that are smaller on the average are not copied. A scan of groups of 170 KB costs Arrow and DuckDB about
    # what it does at ten times that; at 85 KB it is half as much again, at 35 KB more than twice as much.
    copy_above_bytes: int = 256 << 10
    memory_bytes: int = 1 << 30  # what the task may hold
    retired_ids: tuple[int, ...] = ()  # field ids of the table's other versions: of columns that were dropped
    limit_s: float | None = None  # seconds that a worker may take; None: as long as it likes
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
