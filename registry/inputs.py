"""What callers pass in: rows before the registry assigns ids and times.

Drafts are plain data. `validate` raises `Invalid` for drafts that can't be stored, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, lt
from typing import ClassVar, Literal, TypeAlias, get_args

import msgspec

from registry import validation
from registry.errors import Invalid
from registry.json_text import EMPTY_LIST, EMPTY_OBJECT, JsonText
from registry.models import (
    CatalogOperation,
    CompactionStatus,
    CompactionTrigger,
    DeleteContent,
    FileOperation,
    SnapshotStatus,
    SnapshotTrigger,
    object_uri,
)

__all__ = [
    "Advance",
    "CatalogCommit",
    "CompactionDraft",
    "CompactionOutcome",
    "DeleteFileDraft",
    "Fence",
    "FileDraft",
    "OffsetDraft",
    "ProducerDraft",
    "Registration",
    "SegmentDraft",
    "SnapshotDraft",
    "TableDraft",
    "validate",
]


class SegmentDraft(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition_id: int
    base_offset: int
    end_offset: int
    record_count: int
    size_bytes: int
    s3_bucket: str
    s3_key: str
    byte_offset: int = 0
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    block_index: str | None = None

    checks: ClassVar[dict[str, validation.Check]] = {
        "topic": validation.name,
        "partition_id": validation.integer32,
        "base_offset": validation.integer,
        "end_offset": validation.integer,
        "record_count": validation.integer,
        "size_bytes": validation.integer,
        "s3_bucket": validation.bucket,
        "s3_key": validation.non_empty_path,
        "byte_offset": validation.integer,
        "min_timestamp": lambda field, value: validation.optional(field, value, validation.timestamp),
        "max_timestamp": lambda field, value: validation.optional(field, value, validation.timestamp),
        "block_index": lambda field, value: validation.optional(field, value, validation.non_empty),
    }

    @property
    def uri(self) -> str:
        """The URI of its object."""
        return object_uri(self.s3_bucket, self.s3_key)


class Fence(msgspec.Struct, frozen=True, gc=False):
    """The lease under which a writer works. `add_segments` raises `Fenced` if it is not the current one."""

    topic: str
    partition_id: int
    agent_id: str
    epoch: int

    checks: ClassVar[dict[str, validation.Check]] = {
        "topic": validation.name,
        "partition_id": validation.integer32,
        "agent_id": validation.name,
        "epoch": validation.integer,
    }


class ProducerDraft(msgspec.Struct, frozen=True, gc=False):
    """The records that one call adds for one producer to one partition. Sequence numbers count its records.

    The first sequence may be any number. ``base_offset`` and ``record_count`` are those of the producer's last append.
    """

    topic: str
    partition_id: int
    producer_id: str
    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    record_count: int

    checks: ClassVar[dict[str, validation.Check]] = {
        "topic": validation.name,
        "partition_id": validation.integer32,
        "producer_id": validation.name,
        "epoch": validation.integer,
        "first_sequence": validation.integer,
        "last_sequence": validation.integer,
        "base_offset": validation.integer,
        "record_count": validation.integer,
    }


class OffsetDraft(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition_id: int
    committed_offset: int
    metadata: str | None = None

    checks: ClassVar[dict[str, validation.Check]] = {
        "topic": validation.name,
        "partition_id": validation.integer32,
        "committed_offset": validation.integer,
        "metadata": lambda field, value: validation.optional(field, value, validation.text),
    }


class Advance(msgspec.Struct, frozen=True, gc=False):
    """Moves a consumer group's committed offset in one partition, if it is still ``expected``.

    ``expected`` is None if the group has committed nothing there, which is not the same as 0.
    """

    group_id: str
    topic: str
    partition_id: int
    expected: int | None
    committed_offset: int
    metadata: str | None = None

    checks: ClassVar[dict[str, validation.Check]] = {
        "group_id": validation.name,
        "topic": validation.name,
        "partition_id": validation.integer32,
        "expected": lambda field, value: validation.optional(field, value, validation.integer),
        "committed_offset": validation.integer,
        "metadata": lambda field, value: validation.optional(field, value, validation.text),
    }

    @property
    def key(self) -> tuple[str, str, int]:
        return self.group_id, self.topic, self.partition_id


class TableDraft(msgspec.Struct, frozen=True, kw_only=True):
    """One schema version of a table."""

    schema: JsonText
    storage_engine: str = "parquet"
    engine_config: JsonText = EMPTY_OBJECT
    format: str = "parquet"
    compression: str = "zstd"
    partition_by: JsonText = EMPTY_LIST
    sort_by: JsonText = EMPTY_LIST
    properties: JsonText = EMPTY_OBJECT

    checks: ClassVar[dict[str, validation.Check]] = {
        "schema": validation.non_empty,
        "storage_engine": validation.non_empty,
        "engine_config": validation.non_empty,
        "format": validation.non_empty,
        "compression": validation.non_empty,
        "partition_by": validation.non_empty,
        "sort_by": validation.non_empty,
        "properties": validation.non_empty,
    }


class FileDraft(msgspec.Struct, frozen=True, kw_only=True):
    file_path: str
    file_size: int
    row_count: int
    schema_version: int
    partition_path: str = ""
    file_type: str = "parquet"
    checksum: str | None = None
    is_compressed: bool = True
    column_stats: JsonText | None = None

    checks: ClassVar[dict[str, validation.Check]] = {
        "file_path": validation.non_empty_path,
        "file_size": validation.integer,
        "row_count": validation.integer,
        "schema_version": validation.integer32,
        "partition_path": validation.path,
        "file_type": validation.non_empty,
        "checksum": lambda field, value: validation.optional(field, value, validation.text),
        "is_compressed": validation.boolean,
        "column_stats": lambda field, value: validation.optional(field, value, validation.non_empty),
    }

    @property
    def file_name(self) -> str:
        return self.file_path.rpartition("/")[2]


class DeleteFileDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A delete file that an engine adds. A deletion vector has the offset of its blob in a Puffin file."""

    file_path: str
    file_size: int
    content: DeleteContent
    row_count: int
    sequence_number: int
    file_type: str = "parquet"
    partition_path: str = ""
    spec_id: int = 0
    equality_ids: JsonText | None = None
    referenced_data_file: str | None = None
    content_offset: int = 0
    snapshot_id: int | None = None

    checks: ClassVar[dict[str, validation.Check]] = {
        "file_path": validation.non_empty_path,
        "file_size": validation.integer,
        "content": lambda field, value: validation.one_of(field, value, get_args(DeleteContent)),
        "row_count": validation.integer,
        "sequence_number": validation.integer,
        "file_type": validation.non_empty,
        "partition_path": validation.path,
        "spec_id": validation.integer32,
        "equality_ids": lambda field, value: validation.optional(field, value, validation.non_empty),
        "referenced_data_file": lambda field, value: validation.optional(field, value, validation.non_empty_path),
        "content_offset": validation.integer,
        "snapshot_id": lambda field, value: validation.optional(field, value, validation.timestamp),
    }

    @property
    def key(self) -> tuple[str, int]:
        return self.file_path, self.content_offset


class CatalogCommit(msgspec.Struct, frozen=True, kw_only=True):
    """One table's part of a commit through the Iceberg catalog: the pointer, and what changes with it.

    ``expected`` is the pointer that was read; None: the catalog must not have the table. ``create`` creates the
    registry's table with the id ``table_id`` from `MetadataStore.reserve_table_id`, at ``table_location``; without
    ``create``, a ``table_location`` is the new one of a table that moves.
    """

    catalog: str
    namespace: str
    name: str
    expected: str | None
    location: str  # the new metadata file
    table_id: int
    create: TableDraft | None = None
    table_location: str | None = None
    version: TableDraft | None = None  # a further schema version
    version_expected: int | None = None  # the current one
    added: Sequence[FileDraft] = ()
    removed: Sequence[str] = ()  # paths
    deletes_added: Sequence[DeleteFileDraft] = ()
    deletes_removed: Sequence[str | tuple[str, int]] = ()  # paths; of deletion vectors with their offsets
    required: Sequence[str] = ()  # paths that must be live: data files to which the added delete files may refer
    snapshot_id: int | None = None
    parent_snapshot_id: int | None = None
    operation: CatalogOperation = "append"
    engine: str | None = None

    checks: ClassVar[dict[str, validation.Check]] = {
        "catalog": validation.catalog_name,
        "namespace": validation.catalog_name,
        "name": validation.catalog_name,
        "expected": lambda field, value: validation.optional(field, value, validation.metadata_location),
        "location": validation.metadata_location,
        "table_id": lambda field, value: validation.integer(field, value, 1),
        "table_location": lambda field, value: validation.optional(field, value, validation.non_empty),
        "version_expected": lambda field, value: validation.optional(
            field, value, lambda f, v: validation.integer(f, v, 1, validation.MAX_INT32 - 1)
        ),
        "snapshot_id": lambda field, value: validation.optional(field, value, validation.timestamp),
        "parent_snapshot_id": lambda field, value: validation.optional(field, value, validation.timestamp),
        "operation": lambda field, value: validation.one_of(field, value, get_args(CatalogOperation)),
        "engine": lambda field, value: validation.optional(field, value, validation.text),
    }

    @property
    def operation_id(self) -> str | None:
        """The operation id of the files that it adds."""
        return None if self.snapshot_id is None else f"iceberg-{self.snapshot_id}"


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """Files that one operation adds to a table."""

    table_id: int
    files: Sequence[FileDraft]
    operation: FileOperation = "insert"
    operation_id: str | None = None
    intents_of: str | None = None  # the required owner of the files' upload intents
    advances: Sequence[Advance] = ()  # of the consumer groups whose records these files contain, if any
    insert_id: str | None = None  # by which a repetition is recognized


class SnapshotDraft(msgspec.Struct, frozen=True, kw_only=True):
    snapshot_id: int | None = None
    timestamp: int
    manifest_list: str | None = None
    summary: JsonText = EMPTY_OBJECT
    schema_id: int | None = None
    trigger: SnapshotTrigger = "manual"
    status: SnapshotStatus = "created"
    tag: str | None = None
    reason: str | None = None

    checks: ClassVar[dict[str, validation.Check]] = {
        "snapshot_id": lambda field, value: validation.optional(field, value, validation.integer),
        "timestamp": validation.integer,
        "manifest_list": lambda field, value: validation.optional(field, value, validation.non_empty),
        "summary": validation.non_empty,
        "schema_id": lambda field, value: validation.optional(field, value, validation.integer32),
        "trigger": lambda field, value: validation.one_of(field, value, get_args(SnapshotTrigger)),
        "status": lambda field, value: validation.one_of(field, value, get_args(SnapshotStatus)),
        "tag": lambda field, value: validation.optional(field, value, validation.name),
        "reason": lambda field, value: validation.optional(field, value, validation.text),
    }


class CompactionDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A decision to compact a partition, or not to, with the reason."""

    table_id: int
    table_name: str
    partition_path: str = ""
    status: Literal["waiting", "declined"] = "waiting"
    trigger: CompactionTrigger = "event"
    rule: str
    strategy: str | None = None
    explanation: JsonText = EMPTY_OBJECT
    position: int | None = None
    input_files: int = 0
    input_bytes: int = 0
    reason: str | None = None
    decided_at: int | None = None  # None: now

    checks: ClassVar[dict[str, validation.Check]] = {
        "table_id": validation.integer,
        "table_name": validation.non_empty,
        "partition_path": validation.path,
        "status": lambda field, value: validation.one_of(field, value, ("waiting", "declined")),
        "trigger": lambda field, value: validation.one_of(field, value, get_args(CompactionTrigger)),
        "rule": validation.non_empty,
        "strategy": lambda field, value: validation.optional(field, value, validation.non_empty),
        "explanation": validation.non_empty,
        "position": lambda field, value: validation.optional(field, value, validation.integer),
        "input_files": validation.integer,
        "input_bytes": validation.integer,
        "reason": lambda field, value: validation.optional(field, value, validation.text),
        "decided_at": lambda field, value: validation.optional(field, value, validation.integer),
    }


class CompactionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a compaction ended. None leaves the column unchanged."""

    status: Literal["done", "aborted", "failed", "cancelled"]
    reason: str | None = None
    strategy: str | None = None
    explanation: JsonText | None = None
    input_files: int | None = None  # if it swapped fewer files than planned
    input_bytes: int | None = None
    output_files: int | None = None
    output_bytes: int | None = None
    row_count: int | None = None

    checks: ClassVar[dict[str, validation.Check]] = {
        "status": lambda field, value: validation.one_of(field, value, ENDED),
        "reason": lambda field, value: validation.optional(field, value, validation.text),
        "strategy": lambda field, value: validation.optional(field, value, validation.non_empty),
        "explanation": lambda field, value: validation.optional(field, value, validation.non_empty),
        "input_files": lambda field, value: validation.optional(field, value, validation.integer),
        "input_bytes": lambda field, value: validation.optional(field, value, validation.integer),
        "output_files": lambda field, value: validation.optional(field, value, validation.integer),
        "output_bytes": lambda field, value: validation.optional(field, value, validation.integer),
        "row_count": lambda field, value: validation.optional(field, value, validation.integer),
    }


ENDED: tuple[CompactionStatus, ...] = ("done", "aborted", "failed", "cancelled")

Draft: TypeAlias = (
    SegmentDraft
    | Fence
    | ProducerDraft
    | OffsetDraft
    | Advance
    | TableDraft
    | FileDraft
    | DeleteFileDraft
    | CatalogCommit
    | SnapshotDraft
    | CompactionDraft
    | CompactionOutcome
)


def validate(drafts: Sequence[Draft]) -> None:
    """Raises `Invalid` for the first draft that can't be stored. All drafts must be of one type."""
    if not drafts:
        return
    kind = type(drafts[0])
    for field, check in kind.checks.items():
        validation.every(field, list(map(attrgetter(field), drafts)), check)
    if isinstance(drafts[0], SegmentDraft):
        bases, ends = (list(map(attrgetter(field), drafts)) for field in ("base_offset", "end_offset"))
        if any(map(lt, ends, bases)):
            base, end = next((base, end) for base, end in zip(bases, ends, strict=True) if end < base)
            raise Invalid("end_offset", end, f"is below base_offset {base}")
        if validation.MAX_INT in ends:
            raise Invalid("end_offset", validation.MAX_INT, "leaves no next offset to assign")
