"""The requirements of a commit: what must be true of the table that it is applied to.

Clients and Iceberg's compatibility kit look at the messages, so they are worded as Iceberg's own server words them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from components.lib.lake.engine_commits.errors import CommitConflict, InvalidCommit
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata


class _Requirement(msgspec.Struct, frozen=True, rename="kebab", tag_field="type"):
    pass


class AssertCreate(_Requirement, frozen=True, tag="assert-create"):
    pass


class AssertTableUUID(_Requirement, frozen=True, tag="assert-table-uuid"):
    uuid: str


class AssertRefSnapshotId(_Requirement, frozen=True, tag="assert-ref-snapshot-id"):
    ref: str
    snapshot_id: int | None = None


class AssertLastAssignedFieldId(_Requirement, frozen=True, tag="assert-last-assigned-field-id"):
    last_assigned_field_id: int


class AssertCurrentSchemaId(_Requirement, frozen=True, tag="assert-current-schema-id"):
    current_schema_id: int


class AssertLastAssignedPartitionId(_Requirement, frozen=True, tag="assert-last-assigned-partition-id"):
    last_assigned_partition_id: int


class AssertDefaultSpecId(_Requirement, frozen=True, tag="assert-default-spec-id"):
    default_spec_id: int


class AssertDefaultSortOrderId(_Requirement, frozen=True, tag="assert-default-sort-order-id"):
    default_sort_order_id: int


Requirement: TypeAlias = (
    AssertCreate
    | AssertTableUUID
    | AssertRefSnapshotId
    | AssertLastAssignedFieldId
    | AssertCurrentSchemaId
    | AssertLastAssignedPartitionId
    | AssertDefaultSpecId
    | AssertDefaultSortOrderId
)


def creates(requirements: Iterable[Requirement]) -> bool:
    """Returns whether the commit creates the table. Raises `InvalidCommit` if it also requires something of it."""
    found = list(requirements)
    if not any(isinstance(requirement, AssertCreate) for requirement in found):
        return False
    others = [requirement for requirement in found if not isinstance(requirement, AssertCreate)]
    if others:
        raise InvalidCommit(f"Invalid create requirements: {others}")
    return True


def check(requirements: Iterable[Requirement], base: IcebergMetadata | None) -> None:
    """Raises `CommitConflict` for the first requirement that the table does not meet; None: there is no table."""
    for requirement in requirements:
        if isinstance(requirement, AssertCreate):
            if base is not None:
                raise CommitConflict("Requirement failed: table already exists")
        elif base is None:
            raise InvalidCommit("a commit to a table that does not exist must have the requirement assert-create")
        else:
            _check(requirement, base)


def _check(requirement: Requirement, base: IcebergMetadata) -> None:
    match requirement:
        case AssertTableUUID(uuid):
            if uuid.lower() != base.table_uuid.lower():
                raise CommitConflict(f"Requirement failed: UUID does not match: expected {base.table_uuid} != {uuid}")
        case AssertRefSnapshotId(name, snapshot_id):
            _check_reference(base, name, snapshot_id)
        case AssertLastAssignedFieldId(expected):
            _check_id("last assigned field id", expected, base.last_column_id)
        case AssertCurrentSchemaId(expected):
            _check_id("current schema", expected, base.current_schema_id)
        case AssertLastAssignedPartitionId(expected):
            _check_id("last assigned partition id", expected, base.last_partition_id)
        case AssertDefaultSpecId(expected):
            _check_id("default partition spec", expected, base.default_spec_id)
        case AssertDefaultSortOrderId(expected):
            _check_id("default sort order", expected, base.default_sort_order_id)


def _check_id(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise CommitConflict(f"Requirement failed: {what} changed: expected id {expected} != {found}")


def _check_reference(base: IcebergMetadata, name: str, expected: int | None) -> None:
    found = base.refs.get(name)
    if found is None:
        if expected is not None:
            raise CommitConflict(f"Requirement failed: branch or tag {name} is missing, expected {expected}")
    elif expected is None:
        raise CommitConflict(f"Requirement failed: {found.type} {name} was created concurrently")
    elif expected != found.snapshot_id:
        raise CommitConflict(
            f"Requirement failed: {found.type} {name} has changed: expected id {expected} != {found.snapshot_id}"
        )
