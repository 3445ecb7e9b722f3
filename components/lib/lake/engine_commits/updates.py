"""The updates of a commit, as clients of the REST protocol send them. `MetadataBuilder` applies them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from components.lib.lake.engine_commits.iceberg_metadata import Document


class _Update(msgspec.Struct, frozen=True, rename="kebab", tag_field="action"):
    pass


class AssignUUID(_Update, frozen=True, tag="assign-uuid"):
    uuid: str


class UpgradeFormatVersion(_Update, frozen=True, tag="upgrade-format-version"):
    format_version: int


class AddSchema(_Update, frozen=True, tag="add-schema"):
    schema: Document


class SetCurrentSchema(_Update, frozen=True, tag="set-current-schema"):
    schema_id: int


class AddSpec(_Update, frozen=True, tag="add-spec"):
    spec: Document


class SetDefaultSpec(_Update, frozen=True, tag="set-default-spec"):
    spec_id: int


class AddSortOrder(_Update, frozen=True, tag="add-sort-order"):
    sort_order: Document


class SetDefaultSortOrder(_Update, frozen=True, tag="set-default-sort-order"):
    sort_order_id: int


class AddSnapshot(_Update, frozen=True, tag="add-snapshot"):
    snapshot: msgspec.Raw


class SetSnapshotRef(_Update, frozen=True, tag="set-snapshot-ref"):
    ref_name: str
    type: Literal["branch", "tag"]
    snapshot_id: int
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None


class RemoveSnapshots(_Update, frozen=True, tag="remove-snapshots"):
    snapshot_ids: list[int]


class RemoveSnapshotRef(_Update, frozen=True, tag="remove-snapshot-ref"):
    ref_name: str


class SetLocation(_Update, frozen=True, tag="set-location"):
    location: str


class SetProperties(_Update, frozen=True, tag="set-properties"):
    """Early clients send `updated`."""

    updates: dict[str, str] | None = None
    updated: dict[str, str] | None = None


class RemoveProperties(_Update, frozen=True, tag="remove-properties"):
    """Early clients send `removed`."""

    removals: list[str] | None = None
    removed: list[str] | None = None


class SetStatistics(_Update, frozen=True, tag="set-statistics"):
    statistics: Document


class RemoveStatistics(_Update, frozen=True, tag="remove-statistics"):
    snapshot_id: int


class SetPartitionStatistics(_Update, frozen=True, tag="set-partition-statistics"):
    partition_statistics: Document


class RemovePartitionStatistics(_Update, frozen=True, tag="remove-partition-statistics"):
    snapshot_id: int


class RemovePartitionSpecs(_Update, frozen=True, tag="remove-partition-specs"):
    spec_ids: list[int]


class RemoveSchemas(_Update, frozen=True, tag="remove-schemas"):
    schema_ids: list[int]


class AddEncryptionKey(_Update, frozen=True, tag="add-encryption-key"):
    encryption_key: Document


class RemoveEncryptionKey(_Update, frozen=True, tag="remove-encryption-key"):
    key_id: str


Update: TypeAlias = (
    AssignUUID
    | UpgradeFormatVersion
    | AddSchema
    | SetCurrentSchema
    | AddSpec
    | SetDefaultSpec
    | AddSortOrder
    | SetDefaultSortOrder
    | AddSnapshot
    | SetSnapshotRef
    | RemoveSnapshots
    | RemoveSnapshotRef
    | SetLocation
    | SetProperties
    | RemoveProperties
    | SetStatistics
    | RemoveStatistics
    | SetPartitionStatistics
    | RemovePartitionStatistics
    | RemovePartitionSpecs
    | RemoveSchemas
    | AddEncryptionKey
    | RemoveEncryptionKey
)
