"""Compares snapshots of the registry with Iceberg's tags: each created row of `table_snapshots` needs its tag.

Tags of other tools are ignored. The two sides are read one after the other while the snapshotter may be running, so a
difference counts only if several comparisons in a row have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyiceberg.table.metadata import TableMetadata

from components.commands.verify.diff import Finding
from components.commands.verify.report import DifferenceKind
from components.lib.lake.iceberg.stamp import TAG
from registry.models import TableSnapshot

_EXPIRING = "astha-expiring-"


def compare_tags(metadata: TableMetadata | None, rows: Iterable[TableSnapshot]) -> Iterator[Finding]:
    """`metadata` is None if there is no Iceberg table."""
    by_id = {row.id: row for row in rows}
    for row in by_id.values():
        if row.status == "created" and (problem := _lost(metadata, row)) is not None:
            yield DifferenceKind.SNAPSHOT_LOST, f"{_name(row)}, snapshot {row.snapshot_id} (row {row.id}): {problem}"
    for name, row_id, snapshot_id in own_tags(metadata):
        found = by_id.get(row_id)
        if not _is_known(name, snapshot_id, found):
            state = "has no such row" if found is None else f"has it as {found.status} {_name(found)!r}"
            yield DifferenceKind.TAG_UNKNOWN, f"{name}, snapshot {snapshot_id}, of row {row_id}: the registry {state}"


def own_tags(metadata: TableMetadata | None) -> Iterator[tuple[str, int, int]]:
    """Yields name, row id and snapshot id of the snapshotter's tags, without those that another tool moved."""
    if metadata is None:
        return
    for key, value in metadata.properties.items():
        parts = value.split()
        if key.startswith(TAG) and len(parts) == 2 and all(part.isdecimal() for part in parts):
            name, row_id, snapshot_id = key.removeprefix(TAG), *map(int, parts)
            ref = metadata.refs.get(name)
            if ref is not None and ref.snapshot_id == snapshot_id:
                yield name, row_id, snapshot_id


def _lost(metadata: TableMetadata | None, row: TableSnapshot) -> str | None:
    if metadata is None:
        return "there is no Iceberg table"
    ref = metadata.refs.get(_name(row)) or metadata.refs.get(f"{_EXPIRING}{row.id}")  # renamed before the row expires
    if ref is None:
        return "Iceberg has no such tag"
    if ref.snapshot_id != row.snapshot_id:
        return f"in Iceberg the tag names snapshot {ref.snapshot_id}"
    if metadata.snapshot_by_id(ref.snapshot_id) is None:
        return "Iceberg has the tag but not the snapshot"
    return None


def _is_known(name: str, snapshot_id: int, row: TableSnapshot | None) -> bool:
    """A tag is set before its row becomes `created`, and renamed before its row becomes `expired`."""
    if row is None:
        return False
    if name == f"{_EXPIRING}{row.id}":
        return row.status == "created" or (row.status == "expired" and row.manifest_list is not None)
    return row.status == "requested" or (row.status == "created" and row.snapshot_id == snapshot_id)


def _name(row: TableSnapshot) -> str:
    return row.tag or f"snapshot-{row.id}"
