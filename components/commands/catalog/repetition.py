"""Recognizes a commit that is sent again because its response was lost."""

from __future__ import annotations

import msgspec

from components.lib.lake.engine_commits.commit_request import CommitRequest
from components.lib.lake.engine_commits.iceberg_metadata import IcebergMetadata, StoredSnapshot
from components.lib.lake.engine_commits.updates import AddSnapshot, AssignUUID


def is_repetition(request: CommitRequest, base: IcebergMetadata) -> bool:
    """Returns whether the table has what the commit adds already: its snapshots, or the identity of a new table."""
    if request.creates:
        assigned = [update.uuid.lower() for update in request.updates if isinstance(update, AssignUUID)]
        return assigned == [base.table_uuid.lower()]
    try:
        added = [
            StoredSnapshot.parse(update.snapshot).snapshot_id
            for update in request.updates
            if isinstance(update, AddSnapshot)
        ]
    except msgspec.DecodeError:
        return False  # applying it will name the reason
    return bool(added) and all(snapshot_id in base.snapshots for snapshot_id in added)
