"""The counts in a snapshot's summary, in Iceberg's names: what it adds and removes, and the totals after it."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table.snapshots import Snapshot

from components.lib.lake.file_set_digest import LiveFile
from components.lib.lake.iceberg.staged_files import StagedFiles
from registry.models import TableFile


def summary_of(
    added: Sequence[TableFile],
    removed: Sequence[LiveFile],
    deletes_added: Sequence[DataFile],
    deletes_removed: Sequence[DataFile],
    parent: Snapshot | None,
    staged: StagedFiles | None = None,
) -> dict[str, str]:
    """`deletes_added` and `deletes_removed` are delete files, `staged` data files that are added too."""
    new_position = _counted(deletes_added, DataFileContent.POSITION_DELETES)
    new_equality = _counted(deletes_added, DataFileContent.EQUALITY_DELETES)
    position = _counted(deletes_removed, DataFileContent.POSITION_DELETES)
    equality = _counted(deletes_removed, DataFileContent.EQUALITY_DELETES)
    partitions = {file.partition_path for file in added} | {file.partition_path for file in removed}
    if staged is not None:
        partitions |= staged.partitions
    counts = {
        "added-data-files": len(added) + (0 if staged is None else staged.digest.files),
        "added-records": sum(file.row_count for file in added) + (0 if staged is None else staged.rows),
        "added-delete-files": len(deletes_added),
        "added-position-delete-files": new_position[0],
        "added-position-deletes": new_position[1],
        "added-equality-delete-files": new_equality[0],
        "added-equality-deletes": new_equality[1],
        "added-files-size": sum(file.file_size for file in added)
        + sum(file.file_size_in_bytes for file in deletes_added)
        + (0 if staged is None else staged.size_bytes),
        "deleted-data-files": len(removed),
        "deleted-records": sum(file.rows for file in removed),
        "removed-delete-files": len(deletes_removed),
        "removed-position-delete-files": position[0],
        "removed-position-deletes": position[1],
        "removed-equality-delete-files": equality[0],
        "removed-equality-deletes": equality[1],
        "removed-files-size": sum(file.size_bytes for file in removed)
        + sum(file.file_size_in_bytes for file in deletes_removed),
        "changed-partition-count": len(partitions),
    }
    moved = {
        "total-data-files": counts["added-data-files"] - counts["deleted-data-files"],
        "total-records": counts["added-records"] - counts["deleted-records"],
        "total-files-size": counts["added-files-size"] - counts["removed-files-size"],
        "total-delete-files": len(deletes_added) - len(deletes_removed),
        "total-position-deletes": new_position[1] - position[1],
        "total-equality-deletes": new_equality[1] - equality[1],
    }
    before = {} if parent is None or parent.summary is None else dict(parent.summary.additional_properties)
    totals = {name: str(max(0, int(before.get(name, 0)) + value)) for name, value in moved.items()}
    return {name: str(value) for name, value in counts.items() if value} | totals


def _counted(files: Sequence[DataFile], content: DataFileContent) -> tuple[int, int]:
    """Returns the files of this kind, and their rows."""
    rows = [file.record_count for file in files if file.content == content]
    return len(rows), sum(rows)
