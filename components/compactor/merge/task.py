"""The contract between a job, which has a group to merge, and the worker. Everything here can be pickled."""

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
"""A table with `sort_by` is always sorted, or z-ordered by the same columns. For others, ``auto`` and ``copy`` copy row
groups where possible and pack rows otherwise; the result says why.
"""

_LONGEST_REASON = 500  # it may contain bytes of a damaged file

ROWS = 0
"""Key of the checksum over whole rows: no field has this id."""


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
    """Raises `BadInput` for every error of reading a file, except MemoryError and errors of the storage, which are not
    the file's fault.
    """
    try:
        yield
    except (MergeFailed, StorageError, MemoryError):  # Arrow's MemoryError is also an ArrowException
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise
        raise BadInput(path, f"can't be read: {error}") from error
    except Exception as error:
        raise BadInput(path, f"can't be read: {_shortened(error)}") from error


def _shortened(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


class MergeInput(msgspec.Struct, frozen=True):
    path: str
    size: int
    rows: int
    schema_version: int
    column_stats: JsonText | None = None  # of the file's row; only a copy uses it
    checksum: str | None = None

    @property
    def has_checksum(self) -> bool:
        """Whether its bytes can be checked."""
        return self.checksum is not None and self.checksum.startswith("sha256:")

    @classmethod
    def of(cls, file: TableFile, strategy: Strategy) -> MergeInput:
        """Leaves out what ``strategy`` does not use: statistics would be six sevenths of a task."""
        stats = file.column_stats if strategy in ("auto", "copy") else None
        return cls(file.file_path, file.file_size, file.row_count, file.schema_version, stats, file.checksum)


class DeleteInput(msgspec.Struct, frozen=True):
    """A position delete file that may name rows of the inputs."""

    path: str
    size: int
    rows: int


class MergeTask(msgspec.Struct, frozen=True, kw_only=True):
    operation_id: str
    table: str  # full name, for messages
    partition_path: str
    inputs: tuple[MergeInput, ...]
    outputs: tuple[str, ...]  # URIs with upload intents; not all need be used
    versions: tuple[TableMetadata, ...]  # the current one first, then the older ones of the inputs
    strategy: Strategy = "auto"
    strategy_reason: str = "the strategy was requested"
    target_bytes: int = 128 << 20
    # Row groups with a smaller mean size are not copied. A scan of row groups of 170 KB costs Arrow and DuckDB about as
    # much as of ten times that; at 85 KB it costs half as much again, at 35 KB more than twice as much.
    copy_above_bytes: int = 256 << 10
    memory_bytes: int = 1 << 30  # most memory of the task
    retired_ids: tuple[int, ...] = ()  # field ids of dropped columns
    limit_s: float | None = None  # for a worker; None: no limit
    deletes: tuple[DeleteInput, ...] = ()  # the rows that they name are left out
    lake: LakeSettings = LakeSettings()


class MergeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The job checks rows and checksums again before the swap."""

    files: list[FileDraft]
    rows_in: int  # without the deleted ones
    rows_out: int
    checksums_in: dict[int, str]  # field id of a leaf column, or `ROWS`
    checksums_out: dict[int, str]
    bytes_read: int
    bytes_written: int
    strategy: Strategy  # never auto
    why: str  # this strategy
    seconds: dict[str, float]  # by phase: read, sort, encode, write, verify
    rows_deleted: int = 0  # rows of the inputs that delete files name
    # By delete file: the other files that it names; None: too many to say.
    named_by_deletes: dict[str, tuple[str, ...] | None] = {}

    @property
    def proven(self) -> bool:
        return self.rows_in == self.rows_out and self.checksums_in == self.checksums_out
